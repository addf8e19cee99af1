"""Files that Nsight Compute wrote, as figures: ``import_files(paths)`` gives an ``Imported``.

The way of a file: ``source`` (bytes to lines), ``reader`` (which form), ``csv_log``,
``page_text``, ``transposed`` or ``report_file`` (rows to ``launches``, with ``numerals``,
``unit_names`` and ``vocabulary``), ``merge`` (several files), ``totals``, ``imported``.
"""

from roofprobe.ncu_import.calibration import Calibration
from roofprobe.ncu_import.imported import Imported, Kernel, import_files

__all__ = ["Calibration", "Imported", "Kernel", "import_files"]

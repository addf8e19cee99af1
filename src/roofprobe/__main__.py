"""``python -m roofprobe`` is the ``roofprobe`` command."""

import sys

from roofprobe.cli import main

if __name__ == "__main__":
    sys.exit(main())

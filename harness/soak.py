"""A thousand measurements in one process: does anything pile up, does any count change?

Question: can a long training run be measured again and again?
Method: one product of two matrices is measured over and over with the full set, kernel records
included. Memory (of the process and of the GPU), open files and threads are read after each; what
grows between the second tenth and the last is a leak. FLOP of a product are the same every time,
so every FLOP counter must have one value.

    python harness/soak.py OUT.json [--count 1000]       # 1,000 take about 8 minutes on an H200

Without a GPU the analytic backend is soaked. The exit code is 1 where something grew or changed.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

import roofprobe
from roofprobe import metrics

SIZE: Final = 1024  # of the matrices: 2 * 1024^3 FLOP, tens of microseconds on a GPU
# More growth than this, from the second tenth of the run to the last, is a leak.
MOST_BYTE: Final = 20 * 2**20
MOST_FILES: Final = 2
MOST_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """What the process holds.

    Attributes:
        resident: Bytes of memory.
        device: Bytes of the GPU's memory in use, of everybody; 0 without a GPU.
        files: Open file descriptors.
        threads: Threads.
    """

    resident: float
    device: float
    files: float
    threads: float

    @classmethod
    def now(cls) -> "Usage":
        """Asks the system."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        device = 0
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            device = total - free
        files, threads = (
            sum(1 for _ in Path(f"/proc/self/{name}").iterdir()) for name in ("fd", "task")
        )
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), device, files, threads)

    @classmethod
    def mean(cls, usages: list["Usage"]) -> "Usage":
        """Of several."""
        return cls(*(fmean(asdict(usage)[name] for usage in usages) for name in cls.__slots__))


def soak(count: int) -> dict[str, Any]:
    """Measures; returns what to write down, with the ``faults`` that were found."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, out = (torch.randn(SIZE, SIZE, device=device) for _ in range(3))
    usages: list[Usage] = []
    counts: dict[str, set[float | None]] = {}
    incomplete = 0
    started = time.perf_counter()
    for index in range(count):
        record = roofprobe.measure_step(
            lambda: torch.mm(a, b, out=out), warmup=0, timed=1, device=device
        )
        incomplete += not record.complete
        for row in metrics.rows(record.metrics):
            if row.kind == "flop":
                counts.setdefault(row.name, set()).add(record.value(row.name))
        usages.append(Usage.now())
        if index % max(1, count // 10) == 0:
            print(f"{index}: {usages[-1]}", flush=True)
    duration = time.perf_counter() - started
    tenth = max(1, count // 10)
    early, late = Usage.mean(usages[tenth : 2 * tenth]), Usage.mean(usages[-tenth:])
    limits = Usage(MOST_BYTE, MOST_BYTE, MOST_FILES, MOST_THREADS)
    faults = [
        f"{name} grew from {asdict(early)[name]:g} to {asdict(late)[name]:g}"
        for name, limit in asdict(limits).items()
        if asdict(late)[name] - asdict(early)[name] > limit
    ]
    faults += [
        f"{name} read {len(values)} values" for name, values in counts.items() if len(values) > 1
    ]
    if not any(value for values in counts.values() for value in values):
        faults.append("no FLOP were counted")
    if incomplete:
        faults.append(f"{incomplete} measurements were incomplete")
    return {
        "device": record.environment.device_name,
        "source": record.source,
        "created": record.created,
        "driver": record.environment.driver,
        "torch": record.environment.torch,
        "cupti": record.environment.cupti,
        "count": count,
        "seconds": duration,
        "second_tenth": asdict(early),
        "last_tenth": asdict(late),
        "values": {name: sorted(values, key=str) for name, values in sorted(counts.items())},
        "faults": faults,
    }


def main() -> int:
    """Runs, writes the result, and gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--count", type=int, default=1000, metavar="N")
    arguments = parser.parse_args()
    if arguments.count < 20:
        parser.error("below 20 measurements a tenth says nothing")
    found = soak(arguments.count)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(found["faults"]) or f"{found['count']} measurements, nothing grew or changed")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())

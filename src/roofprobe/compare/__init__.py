"""What changed between two run records, in numbers and in words, and gates on it for CI.

Pure functions of two records. A change is (after - before) / before; ``quantities`` says what is
compared and how far each of it strays when nothing has changed, ``setups`` in what the runs
differ, ``findings`` what it means, ``gates`` what fails.
"""

from roofprobe.compare.change import Change, plain, signed
from roofprobe.compare.comparison import Comparison, compare
from roofprobe.compare.gates import Gate, Outcome, check, parse_gates
from roofprobe.compare.setups import Difference, Effect

__all__ = [
    "Change",
    "Comparison",
    "Difference",
    "Effect",
    "Gate",
    "Outcome",
    "check",
    "compare",
    "parse_gates",
    "plain",
    "signed",
]

"""From facts to findings: what is well, what is not, and who must do what. Pure.

A finding fails when measuring with counters would not work here, or would count the wrong thing;
it warns when something is lost or doubtful. One cause fails once: what follows from it is ``n/a``.
"""

from typing import Final

from roofprobe.doctor import gpus, others, selftest, software
from roofprobe.doctor.facts import Facts
from roofprobe.doctor.findings import Finding
from roofprobe.doctor.state import State

# In the order in which one rests on another.
_RULES: Final = (
    software.platform,
    software.probe,
    software.driver,
    software.torch,
    software.cupti,
    gpus.gpus,
    gpus.permission,
    gpus.configuration,
    gpus.mig,
    others.mps,
    others.other_profilers,
    others.injected,
    gpus.memory,
    gpus.clocks,
    software.kernel_records,
    software.ncu,
)


def judge(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which one rests on another."""
    state = State(facts)
    found = [finding for rule in _RULES for finding in rule(state)]
    possible = not any(finding.status == "fail" for finding in found)
    return (*found, *selftest.judge(facts, possible=possible, wsl=state.wsl))


def may_measure(facts: Facts) -> bool:
    """Whether a self-test can be tried: CUPTI opens the GPU's counters, and they are ours alone."""
    granted = facts.gpu is not None and facts.gpu.granted is True
    return facts.probe_failure is None and granted and not State(facts).shared

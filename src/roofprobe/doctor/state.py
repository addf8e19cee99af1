"""What several rules conclude from the same facts. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from roofprobe import refusals
from roofprobe.doctor.facts import Facts

# cupti_version.h
_OLD_NUMBERS: Final = {"API 24": "12.6", "API 26": "12.8", "API 27": "12.9", "API 28": "12.9"}


@dataclass(frozen=True, slots=True)
class State:
    """Facts, and what several rules conclude from them."""

    facts: Facts

    @property
    def wsl(self) -> bool:
        """Under WSL, by the kernel's word or by CUPTI's."""
        host, gpu = self.facts.host, self.facts.gpu
        said = gpu is not None and gpu.support.get("wsl") == "unsupported"
        return refusals.is_wsl(host.kernel, host.dxg) or refusals.WSL in self.codes or said

    @property
    def wsl_refuses(self) -> bool:
        """The platform itself keeps the counters back."""
        gpu = self.facts.gpu
        codes = {*self.codes, refusals.status_of_support(gpu.support if gpu is not None else {})}
        found = (refusals.of_status(code, wsl=self.wsl) for code in codes)
        return any(refusal is not None and refusal.of_wsl for refusal in found)

    @property
    def mps(self) -> bool:
        """CUDA's Multi-Process Service serves this process, as far as a container shows it."""
        host = self.facts.host
        seen = any(name.startswith(refusals.MPS_PROCESS) for name in host.processes)
        return seen or host.mps_pipe is not None

    @property
    def shared(self) -> bool:
        """Counters would be those of several processes, and nobody has said to take them so."""
        return self.mps and self.facts.host.environment.get(refusals.MPS_ALLOWED) != "1"

    @property
    def usable(self) -> bool:
        """The driver answers, or a GPU was seen."""
        return self.facts.software.cuda_driver is not None or bool(self.facts.gpus)

    @property
    def codes(self) -> frozenset[int]:
        """CUPTI's statuses for the selected GPU."""
        test = self.facts.self_test
        failures = [self.facts.gpu.failure if self.facts.gpu else None]
        failures += [counted.failure for counted in test.counted] if test else []
        return frozenset(f.code for f in failures if f is not None and f.code is not None)


def release(cupti: str | None) -> str | None:
    """The CUDA release of a CUPTI version, whose older numbers count otherwise (``API 26``)."""
    return _OLD_NUMBERS.get(cupti or "", cupti)


def pair(version: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def major_of(version: str | None) -> int | None:
    """The first number of a version."""
    found = pair(version)
    return found[0] if found else None


def major(version: str | None) -> int | None:
    """CUDA's major version; those of CUPTI's older numbers that work are all CUDA 12's."""
    return 12 if (version or "").startswith("API") else major_of(version)


def count(number: int, what: str) -> str:
    """``count(2, "GPU")`` is ``2 GPUs``."""
    return f"{number} {what}" + ("" if number == 1 else "s")

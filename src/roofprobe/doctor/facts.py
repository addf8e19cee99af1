"""What was found out about a machine, and how the texts that say so are read. Pure.

None means "not known" everywhere: not asked, not answered, or answered with ``[N/A]``.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

# linux/capability.h
_CAPABILITIES: Final = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
_MIB: Final = 2**20
# What nvidia-smi answers for memory that is the CPU's.
_NO_MEMORY: Final = ("[N/A]", "N/A", "[Not Supported]", "Not Supported")
_MODES: Final = {"Enabled": True, "Disabled": False}


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be asked, or was refused.

    Attributes:
        text: What went wrong, for a person.
        code: CUPTI's status, where it was CUPTI.
    """

    text: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The operating system's side.

    Attributes:
        kernel: Text of /proc/version.
        dxg: /dev/dxg exists (WSL 2).
        driver: Version of NVIDIA's kernel module.
        admin_only: The module lets only administrators read counters.
        uid: Effective user.
        capabilities: Those of CAP_SYS_ADMIN and CAP_PERFMON that are in effect.
        own_user_namespace: The process lives in a user namespace of its own, in which its
            capabilities mean nothing to the driver.
        container: What shows that this is a container.
        processes: Running processes that may hold or share counters (``refusals.processes``).
        mps_pipe: Where a daemon of the Multi-Process Service listens.
        environment: Environment variables that matter.
        stubs: Stub libcuda files in folders of LD_LIBRARY_PATH.
        cupti_in_front: libcupti files in folders of LD_LIBRARY_PATH.
    """

    kernel: str | None = None
    dxg: bool = False
    driver: str | None = None
    admin_only: bool | None = None
    uid: int | None = None
    capabilities: tuple[str, ...] = ()
    own_user_namespace: bool | None = None
    container: str | None = None
    processes: tuple[str, ...] = ()
    mps_pipe: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stubs: tuple[str, ...] = ()
    cupti_in_front: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ncu:
    """Nsight Compute: where, which, and the chips that it knows (CUPTI's spelling)."""

    path: str
    version: str
    chips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Software:
    """What a fresh process of this Python loads.

    Attributes:
        torch: PyTorch's version.
        torch_cuda: The CUDA that it was built for; None for a build without CUDA.
        torch_failure: Why it cannot be imported.
        devices: CUDA devices that it sees.
        cuda_driver: CUDA version that the driver supports.
        driver_failure: Why the driver cannot be used.
        cupti: The libcupti in use.
        cupti_version: Its version.
        cupti_failure: Why there is none.
        chips: Chips that it knows.
        loaded_cupti: libcupti files in the process after PyTorch and CUPTI were loaded.
        loaded_cuda: libcuda files in it.
        cupti_python: Version of the package cupti-python.
        ncu: Nsight Compute.
    """

    torch: str | None = None
    torch_cuda: str | None = None
    torch_failure: Failure | None = None
    devices: int | None = None
    cuda_driver: str | None = None
    driver_failure: Failure | None = None
    cupti: str | None = None
    cupti_version: str | None = None
    cupti_failure: Failure | None = None
    chips: tuple[str, ...] = ()
    loaded_cupti: tuple[str, ...] = ()
    loaded_cuda: tuple[str, ...] = ()
    cupti_python: str | None = None
    ncu: Ncu | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance.

    Attributes:
        name: As the driver reports it.
        index: CUDA's number in this process; None where this process does not see the GPU.
        uuid: Without the prefix that tells GPU from MIG instance.
        compute_capability: ``major.minor``.
        chip: CUPTI's name.
        sm_count: Streaming multiprocessors.
        memory_byte: As the source has it; nvidia-smi knows none of an integrated GPU.
        integrated: The GPU uses the CPU's memory.
        mig: MIG is switched on.
        instance: MIG profile of this device, such as ``1c.3g.40gb``.
        sm_clock_max: Hz.
        memory_clock_max: Hz.
        application_clock: SM clock that was set, Hz.
        power_limit: W.
        support: What CUPTI says of range profiling on it (``counters.cupti.device_support``).
        granted: CUPTI listed its counters to this process.
        failure: Why not.
    """

    name: str
    index: int | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    chip: str | None = None
    sm_count: int | None = None
    memory_byte: int | None = None
    integrated: bool | None = None
    mig: bool | None = None
    instance: str | None = None
    sm_clock_max: float | None = None
    memory_clock_max: float | None = None
    application_clock: float | None = None
    power_limit: float | None = None
    support: Mapping[str, str] = field(default_factory=dict)
    granted: bool | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """A piece of work of known size, as it was counted.

    Attributes:
        work: ``copy``, or the precision of a GEMM (``fp32``, ``tf32``, ``bf16``, ``fp16``,
            ``fp64``).
        size: Bytes that are copied, or N of an N x N x N product.
        flop: FLOP path -> counted, FLOP.
        byte: ``dram_read`` and ``dram_write``, byte.
        coverage: Share of the stores that SASS instrumentation saw.
        trusted: SASS counters stand.
        reasons: Why a figure has no value.
        skipped: Why it was not measured.
        failure: The measurement failed.
    """

    work: str
    size: int
    flop: Mapping[str, float | None] = field(default_factory=dict)
    byte: Mapping[str, float | None] = field(default_factory=dict)
    coverage: float | None = None
    trusted: bool | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    skipped: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Work of known size.

    Attributes:
        counted: In the order in which it ran.
        failure: Why it ended early.
    """

    counted: tuple[Counted, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is judged.

    Attributes:
        host: The operating system's side.
        software: What a fresh process loads.
        gpus: Every GPU known to the driver or to CUDA, those that this process sees first.
        selected: CUDA's number of the GPU to measure on.
        probe_failure: The process that asks the driver died or was stopped.
        self_test: None where it did not run.
    """

    host: Host = field(default_factory=Host)
    software: Software = field(default_factory=Software)
    gpus: tuple[Gpu, ...] = ()
    selected: int = 0
    probe_failure: Failure | None = None
    self_test: SelfTest | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The selected GPU."""
        return next((gpu for gpu in self.gpus if gpu.index == self.selected), None)


# -- Texts --------------------------------------------------------------------------------


def admin_only(params: str) -> bool | None:
    """Whether /proc/driver/nvidia/params restricts counters to administrators."""
    # Drivers have written either name.
    names = "RmProfilingAdminOnly|RestrictProfilingToAdminUsers"
    found = re.search(rf"^(?:{names}): *(\d)", params, re.M)
    return found[1] != "0" if found else None


def effective_uid(status: str) -> int | None:
    """Effective user in /proc/self/status."""
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.M)
    return int(found[1]) if found else None


def capabilities(status: str) -> tuple[str, ...]:
    """Effective capabilities in /proc/self/status that can open the counters."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M)
    mask = int(found[1], 16) if found else 0
    return tuple(name for name, bit in _CAPABILITIES.items() if mask >> bit & 1)


def own_user_namespace(uid_map: str) -> bool | None:
    """False where /proc/self/uid_map maps every user onto itself, as outside of namespaces."""
    rows = [line.split() for line in uid_map.splitlines() if line.strip()]
    return rows != [["0", "0", str(2**32 - 1)]] if rows else None


def container(
    files: Iterable[str], cgroup: str, mounts: str, environment: Mapping[str, str]
) -> str | None:
    """What shows that a process runs in a container.

    Args:
        files: Which of /.dockerenv and /run/.containerenv exist.
        cgroup: Text of /proc/self/cgroup.
        mounts: Text of /proc/self/mounts.
        environment: Environment variables.
    """
    for name in files:
        return name
    for variable in ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if environment.get(variable):
            return variable
    if environment.get("container"):  # set by systemd-nspawn, podman and lxc
        return f"container={environment['container']}"
    named = re.search(r"docker|kubepods|containerd|libpod|lxc", cgroup)
    if named:
        return f"{named[0]} in /proc/self/cgroup"
    return "an overlay as root file system" if re.search(r"^overlay / ", mounts, re.M) else None


def is_stub(path: str) -> bool:
    """A library for linking only, which does nothing."""
    return "/stubs/" in path


def listed_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs in the output of ``nvidia-smi --query-gpu=... --format=csv``, by column name.

    ``[N/A]`` and the like, which integrated GPUs answer for memory and clocks, are None. Whatever
    nvidia-smi says before, between and after the rows is passed over.
    """
    header: list[str] = []
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        values = [value.strip() for value in row]
        if not header and "name" in values:
            header = values
            continue
        if not header or len(values) != len(header):
            continue
        cells = dict(zip(header, values, strict=True))
        memory = _number(cells, "memory.total")
        index = _number(cells, "index")
        found.append(
            Gpu(
                cells["name"],
                index=None if index is None else int(index),
                uuid=_text(cells, "uuid"),
                compute_capability=_text(cells, "compute_cap"),
                memory_byte=None if memory is None else int(memory * _MIB),
                integrated=True if _cell(cells, "memory.total") in _NO_MEMORY else None,
                mig=_MODES.get(_cell(cells, "mig.mode.current")),
                sm_clock_max=_hertz(cells, "clocks.max.sm"),
                memory_clock_max=_hertz(cells, "clocks.max.memory"),
                application_clock=_hertz(cells, "clocks.applications.graphics"),
                power_limit=_number(cells, "power.limit"),
            )
        )
    return tuple(found)


def mig_instances(text: str) -> Mapping[str, str]:
    """MIG instances in the output of ``nvidia-smi -L``: bare UUID -> profile."""
    # Drivers before 470 named them otherwise, and no PyTorch that roofprobe works with runs there.
    rows = re.findall(r"^\s*MIG\s+(\S+)\s+Device\s.*MIG-([0-9a-f-]+)\)", text, re.M)
    return {uuid: profile for profile, uuid in rows}


def merged(
    listed: Sequence[Gpu], seen: Sequence[Gpu], instances: Mapping[str, str]
) -> tuple[Gpu, ...]:
    """One row a GPU: what CUDA says of it, filled up with what nvidia-smi lists.

    Args:
        listed: By nvidia-smi, whose numbers are not CUDA's.
        seen: By CUDA in this process.
        instances: MIG instances, UUID -> profile.
    """
    rest = {bare(gpu.uuid): gpu for gpu in listed}
    found = []
    for gpu in seen:
        other = rest.pop(bare(gpu.uuid), None)
        if other is not None:
            clocks = ("sm_clock_max", "memory_clock_max", "application_clock", "power_limit")
            gpu = replace(gpu, **{name: getattr(other, name) for name in ("mig", *clocks)})
        named = re.search(r"\bMIG (\d\S*)", gpu.name)
        profile = instances.get(bare(gpu.uuid) or "", named[1] if named else None)
        found.append(replace(gpu, instance=profile))
    return (*found, *(replace(gpu, index=None) for gpu in rest.values()))


def bare(uuid: str | None) -> str | None:
    """A UUID without ``GPU-`` or ``MIG-`` in front."""
    return re.sub(r"^(?:GPU|MIG)-", "", uuid) if uuid is not None else None


def _cell(cells: Mapping[str, str], name: str) -> str:
    return next((cells[key] for key in cells if key.partition(" [")[0] == name), "")


def _text(cells: Mapping[str, str], name: str) -> str | None:
    value = _cell(cells, name)
    return None if not value or value == "N/A" or value.startswith("[") else value


def _number(cells: Mapping[str, Any], name: str) -> float | None:
    value = re.match(r"-?\d+(?:\.\d+)?", _text(cells, name) or "")
    return float(value[0]) if value else None


def _hertz(cells: Mapping[str, str], name: str) -> float | None:
    mhz = _number(cells, name)
    return None if mhz is None else mhz * 1e6

"""Rules on the platform, the driver, PyTorch, CUPTI and the tools beside it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from roofprobe import refusals
from roofprobe.doctor.facts import is_stub
from roofprobe.doctor.findings import Finding, fail, not_applicable, ok, warn
from roofprobe.doctor.state import State, count, major, pair, release

_NO_DRIVER: Final = "no NVIDIA driver answers"
_NO_DEVICE: Final = "CUDA_ERROR_NO_DEVICE"
# Other ways in which cuInit fails on a machine that has a driver (cuda.h), and the remedies.
_START_FIXES: Final[Mapping[str, str]] = {
    "CUDA_ERROR_SYSTEM_NOT_READY": "on a machine with NVSwitch, whoever runs the HOST starts the "
    "fabric manager of the driver's version (systemctl start nvidia-fabricmanager); elsewhere wait "
    "until the machine has started up",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "reboot after a driver update, or start the container "
    "anew; take folders with another libcuda (CUDA's compat) off LD_LIBRARY_PATH",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take CUDA's compat folder off LD_LIBRARY_PATH: "
    "this GPU needs a driver as new as its libcuda",
}
_ANALYTIC: Final = (
    "a step can be modelled without one (roofprobe.measure(backend='analytic'), or python -m "
    "roofprobe.train); to measure, run roofprobe doctor on the machine with the GPU"
)


def platform(state: State) -> Iterator[Finding]:
    """Whether the platform offers counters at all; comes before any talk of permission."""
    gpu = state.facts.gpu
    if not state.wsl:
        yield ok("platform", "not under WSL")
    elif state.wsl_refuses:
        refusal = refusals.of_status(refusals.WSL, wsl=True)
        assert refusal is not None
        yield fail("platform", refusal.cause, refusal.fix)
    elif gpu is not None and gpu.granted:
        yield ok("platform", "WSL, and CUPTI opens this GPU's counters")
    else:
        yield warn(
            "platform",
            "WSL, which does not offer the counters of every GPU; CUPTI has not said whether it "
            "offers those of this one",
            "mend what fails below; should the counters be refused then, measure under Linux "
            "itself",
        )


def probe(state: State) -> Iterator[Finding]:
    """Whether the driver lets itself be asked."""
    failure = state.facts.probe_failure
    if failure is not None:
        yield fail(
            "probe",
            f"the process that asks the driver {failure.text}",
            "try nvidia-smi and python -c 'import torch; torch.cuda.init()' by hand; a driver that "
            "hangs needs the machine rebooted",
        )


def driver(state: State) -> Iterator[Finding]:
    """Whether there is a driver, and which."""
    host, software = state.facts.host, state.facts.software
    if software.cuda_driver is not None:
        version = host.driver or "of unknown version"
        yield ok("driver", f"{version}, for CUDA {software.cuda_driver}")
        return
    said = software.driver_failure.text if software.driver_failure else ""
    why = f" ({said})" if said else ""
    if state.facts.probe_failure is not None:
        yield not_applicable("driver", f"kernel module {host.driver or 'not seen'}; see probe")
    elif software.devices == 0 and state.usable and _hidden(state):
        known = host.driver or "its version is not known"
        yield not_applicable("driver", f"{known}; it shows this process no GPU: see PyTorch")
    elif software.devices:
        yield warn("driver", f"its version is not known{why}", "look at nvidia-smi")
    elif host.driver is not None or state.usable:
        there = (
            f"the kernel has NVIDIA's module {host.driver}"
            if host.driver is not None
            else "nvidia-smi finds a driver"
        )
        yield fail(
            "driver", f"{there}, but this process cannot use it{why}", _start_fix(state, said)
        )
    else:
        yield fail(
            "driver",
            f"{_NO_DRIVER}, so there are no hardware counters to read on this machine{why}",
            _ANALYTIC,
        )


def _start_fix(state: State, said: str) -> str:
    """What to do where the driver does not start in this process."""
    known = next((fix for error, fix in _START_FIXES.items() if error in said), None)
    default = (
        "start the container with its GPUs (--gpus all, "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility), or reboot after a driver update"
    )
    return known or _hidden(state) or default


def _hidden(state: State) -> str | None:
    """What to do where CUDA is well and shows no GPU; None where nothing tells."""
    failure = state.facts.software.driver_failure
    if failure is not None and _NO_DEVICE not in failure.text:
        return None
    visible = state.facts.host.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return (
            f"CUDA_VISIBLE_DEVICES is {visible!r}: unset it or name a GPU that nvidia-smi -L lists"
        )
    sliced = next((gpu.name for gpu in state.facts.gpus if gpu.mig), None)
    if sliced is not None:
        return (
            f"MIG is on for {sliced}, and CUDA sees nothing but MIG instances: whoever runs the "
            "HOST makes one (nvidia-smi mig -cgi PROFILE -C) or switches MIG off (nvidia-smi -mig "
            "0)"
        )
    return None


def torch(state: State) -> Iterator[Finding]:
    """Whether PyTorch works and sees a GPU."""
    software = state.facts.software
    if software.torch_failure is not None:
        yield fail(
            "PyTorch",
            f"cannot be imported: {software.torch_failure.text}",
            "install it anew (pip install --force-reinstall torch)",
        )
    elif software.torch is None:
        yield not_applicable("PyTorch", "not asked")
    elif software.devices is None or not state.usable:
        yield ok("PyTorch", software.torch)
    elif software.torch_cuda is None:
        yield fail(
            "PyTorch",
            f"{software.torch} was built without CUDA and sees no GPU",
            "install a build for CUDA 12.6 or newer (https://pytorch.org/get-started)",
        )
    elif not software.devices:
        text = f"{software.torch} (CUDA {software.torch_cuda}) sees no GPU"
        hint = "compare its CUDA version with the driver's, and update the older of the two"
        hidden = _hidden(state)
        if hidden is None and software.driver_failure is not None:
            yield not_applicable("PyTorch", f"{text}: see driver")
        else:
            yield fail("PyTorch", text, hidden or hint)
    else:
        yield ok(
            "PyTorch",
            f"{software.torch}, CUDA {software.torch_cuda}, sees {count(software.devices, 'GPU')}",
        )


def cupti(state: State) -> Iterator[Finding]:
    """Whether there is one libcupti, of a version that fits, and the real libcuda."""
    host, software = state.facts.host, state.facts.software
    loaded = software.loaded_cupti
    if len(loaded) > 1:
        yield fail(
            "CUPTI",
            f"{len(loaded)} copies of libcupti are in one process, which break each other: "
            f"{', '.join(loaded)}",
            "uninstall the nvidia-cuda-cupti package that PyTorch was not built for, and take CUDA "
            "toolkits off LD_LIBRARY_PATH",
        )
    elif software.cupti_failure is not None:
        yield fail(
            "CUPTI",
            software.cupti_failure.text,
            "install a PyTorch built for CUDA 12.6 or newer, which brings its own libcupti",
        )
    elif software.cupti_version is None:
        yield not_applicable("CUPTI", "not asked")
    else:
        known = f", knows {count(len(software.chips), 'chip')}" if software.chips else ""
        version = release(software.cupti_version)
        if version != software.cupti_version:
            version = f"{version} ({software.cupti_version})"
        what = f"{version} at {software.cupti}{known}"
        newer = _is_newer(software.cupti_version, software.cuda_driver)
        if newer:
            say = fail if newer == "major" else warn
            yield say(
                "CUPTI",
                f"{what}; it is newer than the driver, which supports CUDA {software.cuda_driver}",
                "update the driver, or install a PyTorch built for the driver's CUDA",
            )
        else:
            yield ok("CUPTI", what)
    front = [path for path in host.cupti_in_front if path != software.cupti]
    if front and len(loaded) < 2:
        yield warn(
            "CUPTI copies",
            f"LD_LIBRARY_PATH puts another libcupti in front of PyTorch's: {', '.join(front)}",
            "take those folders off LD_LIBRARY_PATH",
        )
    yield from _libcuda(state)


def _libcuda(state: State) -> Iterator[Finding]:
    """Whether the driver that was loaded is one, and the only one."""
    host, software = state.facts.host, state.facts.software
    stubs = [path for path in software.loaded_cuda if is_stub(path)]
    if stubs:
        yield fail(
            "libcuda",
            f"a stub, which is for linking only, was loaded as the driver: {', '.join(stubs)}",
            "take the stubs folder off LD_LIBRARY_PATH; the driver's own libcuda is "
            + (", ".join(set(software.loaded_cuda) - set(stubs)) or "in the system's folders"),
        )
    elif len(software.loaded_cuda) > 1 and not state.wsl:  # WSL's own is made of two
        yield warn(
            "libcuda",
            f"{len(software.loaded_cuda)} copies of libcuda are in one process: "
            f"{', '.join(software.loaded_cuda)}",
            "leave one of them: take CUDA's compat folder off LD_LIBRARY_PATH, unless the driver "
            "is too old without it",
        )
    elif host.stubs:
        yield warn(
            "libcuda",
            f"a stub libcuda lies on LD_LIBRARY_PATH: {', '.join(host.stubs)}",
            "take the stubs folder off LD_LIBRARY_PATH before something loads it as the driver",
        )


def kernel_records(state: State) -> Iterator[Finding]:
    """Whether kernels can be traced."""
    software = state.facts.software
    version = software.cupti_python
    ours = major(software.cupti_version)
    if version is None:
        yield warn(
            "kernel records",
            "cupti-python is not installed: kernel times are n/a",
            "pip install cupti-python",
        )
    elif ours is not None and major(version) != ours:
        # What roofprobe requires is for CUDA 13; pip reports that the other differs, and keeps it.
        report = " (pip then reports that roofprobe requires another one)" if ours < 13 else ""
        yield warn(
            "kernel records",
            f"cupti-python {version} is for CUPTI {major(version)}, and this is CUPTI {ours}: "
            "kernel times are n/a",
            f"pip install 'cupti-python=={ours}.*'{report}",
        )
    else:
        yield ok("kernel records", f"cupti-python {version}")


def ncu(state: State) -> Iterator[Finding]:
    """Whether ``roofprobe verify`` can work."""
    tool, gpu = state.facts.software.ncu, state.facts.gpu
    if tool is None:
        yield not_applicable("ncu", "not installed; only roofprobe verify and kernels need it")
    elif gpu is not None and gpu.chip is not None and tool.chips and gpu.chip not in tool.chips:
        yield warn(
            "ncu",
            f"{tool.version} at {tool.path} does not know chip {gpu.chip}",
            "for roofprobe verify and kernels, install one that does and name it with --ncu",
        )
    else:
        knows = f", knows {gpu.chip}" if gpu is not None and gpu.chip in tool.chips else ""
        yield ok("ncu", f"{tool.version} at {tool.path}{knows}")


def _is_newer(cupti: str | None, driver: str | None) -> str | None:
    """``major`` or ``minor`` where CUPTI is newer than what the driver supports."""
    theirs = pair(driver)
    ours = pair(release(cupti)) or ((12, 0) if major(cupti) else None)
    if ours is None or theirs is None or ours <= theirs:
        return None
    return "major" if ours[0] > theirs[0] else "minor"

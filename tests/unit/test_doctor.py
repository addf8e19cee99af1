"""The doctor's judgement, fed with recorded and made-up machines; its probes, with broken ones."""

import ctypes.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from roofprobe import _location, errors, refusals
from roofprobe.cli import main
from roofprobe.counters import cupti
from roofprobe.doctor import child, facts, gather, report, selftest
from roofprobe.doctor.facts import (
    Counted,
    Facts,
    Failure,
    Gpu,
    Host,
    Ncu,
    SelfTest,
    Software,
)
from roofprobe.doctor.judgement import judge, may_measure
from roofprobe.record import Measurement

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
CASES = ROOT.parent / "shared/cases"

SUPPORTED = dict.fromkeys(
    ("overall", "architecture", "sli", "vgpu", "confidential_compute", "cmp", "wsl"), "supported"
)
H200 = Gpu(
    "NVIDIA H200",
    index=0,
    uuid="GPU-5d5ba0d6-0000-0000-0000-000000000001",
    compute_capability="9.0",
    chip="GH100",
    sm_count=132,
    memory_byte=150_109_880_320,
    integrated=False,
    sm_clock_max=1.98e9,
    power_limit=700.0,
    support=SUPPORTED,
    granted=True,
)
LIBCUPTI = "/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03"


def recorded_self_test() -> SelfTest:
    """Six recordings of an H200, as the child would report them."""
    work = {"copy": "copy-2gib"} | {p: f"gemm4096-{p}" for p in selftest.PRECISIONS}
    return SelfTest(
        tuple(
            selftest.of_record(
                Measurement.load(DATA / f"{name}.json"), key, 2**31 if key == "copy" else 4096
            )
            for key, name in work.items()
        )
    )


HEALTHY = Facts(
    Host(
        kernel="Linux version 6.8.0-79-generic (buildd@lcy02) #79-Ubuntu SMP",
        driver="580.159.03",
        admin_only=True,
        uid=0,
        capabilities=("CAP_SYS_ADMIN", "CAP_PERFMON"),
        own_user_namespace=False,
    ),
    Software(
        torch="2.11.0+cu130",
        torch_cuda="13.0",
        devices=1,
        cuda_driver="13.0",
        cupti=LIBCUPTI,
        cupti_version="13.0.1",
        chips=("GA100", "GH100"),
        loaded_cupti=(LIBCUPTI,),
        loaded_cuda=(LIBCUDA,),
        cupti_python="13.0.1",
        ncu=Ncu("/usr/local/cuda/bin/ncu", "2025.3.1.0", ("GA100", "GH100")),
    ),
    gpus=(H200,),
    self_test=recorded_self_test(),
)


def machine(*, gpu: dict | None = None, self_test: SelfTest | None = None, **changes) -> Facts:
    """The healthy machine with changes to its GPU, its host or its software."""
    host = {k: v for k, v in changes.items() if k in Host.__dataclass_fields__}
    software = {k: v for k, v in changes.items() if k in Software.__dataclass_fields__}
    rest = {k: v for k, v in changes.items() if k not in host and k not in software}
    return replace(
        HEALTHY,
        host=replace(HEALTHY.host, **host),
        software=replace(HEALTHY.software, **software),
        gpus=(replace(H200, **(gpu or {})),),
        self_test=self_test,
        **rest,
    )


def refused(code: int) -> dict:
    return {"granted": False, "failure": Failure(f"CUPTI said {code}", code)}


def found(judged: Facts, status: str) -> dict[str, str]:
    """Check -> text and fix, of the findings of one status."""
    return {f.check: f"{f.text} | {f.fix}" for f in judge(judged) if f.status == status}


def text_of(judged: Facts) -> str:
    return "\n".join(f"{f.text} {f.fix or ''}" for f in judge(judged))


@pytest.fixture
def case():
    def find(number: str) -> tuple[Path, dict]:
        if not CASES.is_dir():
            pytest.skip("needs the shared cases beside the checkout")
        (folder,) = CASES.glob(f"{number}-*")
        return folder, json.loads((folder / "expected.json").read_text())["expect"]

    return find


# -- A machine where all is well -----------------------------------------------------------


def test_a_healthy_h200_has_no_complaint():
    judged = judge(HEALTHY)
    assert {f.check for f in judged if f.status not in ("ok", "n/a")} == set()
    assert {f.check for f in judged if f.status == "n/a"} == {"MIG"}
    assert {f.check for f in judged if f.check.startswith("self-test")} == {
        "self-test: SASS coverage",
        "self-test: bytes",
        *(f"self-test: {p} GEMM" for p in selftest.PRECISIONS),
    }
    assert may_measure(HEALTHY)


def test_known_work_is_said_in_numbers():
    lines = found(HEALTHY, "ok")
    # 137,472,507,904 counted, 2 * 4096^3 = 137,438,953,472 expected.
    assert lines["self-test: fp32 GEMM"].startswith("100.0244% of 2 N^3 with N = 4096, on CUDA")
    assert lines["self-test: tf32 GEMM"].startswith("100% of 2 N^3 with N = 4096, on tensor")
    assert lines["self-test: fp64 GEMM"].startswith("100% of 2 N^3 with N = 4096, on tensor")
    # 2,147,549,184 and 2,147,038,976 of 2,147,483,648 bytes.
    assert lines["self-test: bytes"].startswith("a copy of 2.147 GB: read 100%, write 99.979%")
    # 2^29 elements, one FMA each.
    assert lines["self-test: SASS coverage"].startswith("1.074 GFLOP of 1.074 GFLOP counted, 100%")


# -- The shared cases ----------------------------------------------------------------------


def test_01_permission_denied(case):
    folder, expected = case("01")
    env = json.loads((folder / "env.json").read_text())
    for gpu in (refused(expected["cupti_code"]), {"granted": None}):
        judged = machine(
            uid=env["uid"],
            capabilities=("CAP_SYS_ADMIN",) if env["cap_sys_admin"] else (),
            container="/.dockerenv" if env["in_container"] else None,
            admin_only=facts.admin_only(env["proc_driver_nvidia_params"]),
            gpu=gpu,
        )
        failed = found(judged, "fail")
        assert set(failed) == {"permission"}
        for part in (
            "user 0 without CAP_SYS_ADMIN in a container (/.dockerenv)",
            "NVreg_RestrictProfilingToAdminUsers=0",
            "HOST",
            "--cap-add=SYS_ADMIN",
            "root in a container is not enough",
            "a hosted job cannot fix this from inside",
        ):
            assert part in failed["permission"]
        assert not may_measure(judged)


def test_02_wsl_is_a_limit_of_the_platform(case):
    folder, expected = case("02")
    env = json.loads((folder / "env.json").read_text())
    for code in env["cupti_status"]:
        assert expected["per_status"][str(code)]["class"] == "unsupported_platform"
        refusal = refusals.of_status(code, wsl=True)
        assert refusal.kind is errors.WslUnsupportedError
        judged = machine(
            kernel=env["proc_version"],
            dxg=env["dev_dxg_exists"],
            driver=None,
            admin_only=None,
            capabilities=(),
            gpu=refused(code),
        )
        assert set(found(judged, "fail")) == {"platform"}
        assert "WSL" in found(judged, "fail")["platform"]
        assert not re.search(r"NVreg|sudo|root|CAP_SYS", text_of(judged))


WSL = {"kernel": "Linux version 6.6.87.2-microsoft-standard-WSL2", "dxg": True, "driver": None}


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"gpu": refused(27)}, {"platform"}),
        ({"gpu": refused(26)}, {"other profilers"}),
        ({"gpu": refused(39)}, {"injected tools"}),
        ({"gpu": refused(14)}, {"GPU 0"}),
        ({"gpu": refused(999)}, {"GPU 0"}),
        ({"cupti_failure": Failure("none found"), "gpu": {"granted": None}}, {"CUPTI"}),
        ({"torch_cuda": None, "devices": 0, "gpu": {"index": None, "granted": None}}, {"PyTorch"}),
    ],
)
def test_under_wsl_a_cause_of_another_kind_is_not_the_platforms(changes, failed):
    judged = machine(**WSL, **changes)
    assert set(found(judged, "fail")) == failed
    assert ("platform" in found(judged, "warn")) == (failed != {"platform"})


def test_a_refusal_of_wsl_in_the_self_test_fails_once():
    for code in (27, 35, 45):
        failure = Failure("refused", code)
        counted = tuple(replace(c, failure=failure) for c in recorded_self_test().counted)
        assert set(found(machine(**WSL, self_test=SelfTest(counted)), "fail")) == {"platform"}


@pytest.mark.parametrize(
    ("kernel", "wsl"),
    [
        ("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@1) (gcc (GCC) 11.2.0)", True),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc)", True),
        ("Linux version 6.6.51.1-5.azl3 (builder@azurelinux.microsoft.com) (gcc 13.2.0)", False),
        (None, False),
    ],
)
def test_wsl_is_told_by_the_kernels_release(kernel, wsl):
    assert refusals.is_wsl(kernel, dxg=False) is wsl
    assert refusals.is_wsl(kernel, dxg=True)


def test_03_shared_mig_instance(case):
    _, expected = case("03")
    assert (expected["dram_bytes"], expected["flops"]) == (None, 2000000)
    judged = machine(gpu={"instance": "1c.3g.71gb"})
    assert set(found(judged, "fail")) == set()
    text = found(judged, "warn")["MIG"]
    assert "L2 and DRAM" in text and "n/a by design" in text and "FLOP are right" in text
    assert "such as 3g.71gb" in text
    assert "MIG" in found(machine(gpu={"instance": "3g.71gb"}), "ok")


def test_05_dcgm_holds_the_counters(case):
    folder, expected = case("05")
    env = json.loads((folder / "env.json").read_text())
    judged = replace(
        machine(processes=tuple(env["processes"]), devices=2),
        gpus=tuple(
            Gpu("NVIDIA A100-PCIE-40GB", index=gpu["index"], compute_capability=gpu["cc"])
            for gpu in env["gpus"]
        ),
        selected=env["profiling_gpu"],
    )
    with_status = replace(
        judged,
        gpus=(judged.gpus[0], replace(judged.gpus[1], **refused(env["cupti_status"]))),
    )
    assert refusals.of_status(env["cupti_status"], wsl=False).kind is errors.HardwareBusyError
    failed = found(with_status, "fail")
    assert set(failed) == {"other profilers"}
    text = failed["other profilers"]
    assert expected["suspect"].removesuffix(" fields") in text.replace("DCGM's", "DCGM")
    for part in (
        "nv-hostengine, dcgm-exporter",
        "dcgmi profile --pause",
        "dcgmi profile --resume, also when the measurement failed",
        "DCGM_FI_PROF_*",
        "the whole machine",
    ):
        assert part in text
    assert not re.search(r"another GPU|kill", text_of(with_status))
    # Running is not holding.
    assert "dcgmi profile --pause" in found(judged, "warn")["other profilers"]


def test_dcgm_is_no_obstacle_from_hopper_on():
    judged = machine(processes=("nv-hostengine",))
    assert "from Hopper on" in found(judged, "ok")["other profilers"]


def test_dcgm_is_blamed_for_busy_counters_only_where_it_may_hold_them():
    on_hopper = found(machine(processes=("nv-hostengine",), gpu=refused(26)), "fail")
    assert "from Hopper on it need not hold the counters" in on_hopper["other profilers"]
    assert "most likely" not in on_hopper["other profilers"]
    assert "dcgmi profile --resume" in on_hopper["other profilers"]
    ampere = {"compute_capability": "8.0", "chip": "GA100"}
    both = machine(processes=("nv-hostengine", "ncu"), gpu=refused(26) | ampere)
    assert "by ncu or by DCGM's profiling fields" in found(both, "fail")["other profilers"]
    # What is not known to be Hopper or newer may be older.
    unknown = machine(processes=("nv-hostengine",), gpu={"compute_capability": None})
    assert "DCGM runs" in found(unknown, "warn")["other profilers"]
    # A monitor that is no obstacle hides no profiler that is one.
    beside = machine(processes=("nv-hostengine", "ncu"))
    assert "ncu runs" in found(beside, "warn")["other profilers"]


def test_names_of_processes_are_as_the_kernel_cuts_them():
    assert all(len(name) <= 15 for name in (*refusals.DCGM, *refusals.PROFILERS))
    judged = machine(processes=("nv-nsight-cu-cl",), gpu=refused(26))
    assert "most likely by nv-nsight-cu-cl" in found(judged, "fail")["other profilers"]


def test_counters_taken_by_somebody_unseen():
    judged = machine(gpu=refused(26), container="kubepods in /proc/self/cgroup")
    text = found(judged, "fail")["other profilers"]
    assert "of the host, which a container does not show" in text and "dcgmi profile" in text


def test_07_two_libcuptis_and_a_stub(case):
    folder, expected = case("07")
    maps = (folder / "maps.txt").read_text()
    two, cuda = _location.mapped(maps, "libcupti"), _location.mapped(maps, "libcuda")
    assert len(two) == expected["libcupti_distinct"]
    judged = machine(
        loaded_cupti=two, loaded_cuda=cuda, cupti=None, cupti_version=None, gpu=refused(15)
    )
    failed = found(judged, "fail")
    assert {"CUPTI", "libcuda"} <= set(failed)
    assert failed["CUPTI"].startswith("2 copies") and all(path in failed["CUPTI"] for path in two)
    assert "/usr/local/cuda/lib64/stubs/libcuda.so" in failed["libcuda"]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06" in failed["libcuda"]


def test_stub_or_toolkit_on_the_path_is_a_warning():
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so"
    judged = machine(stubs=(stub,), cupti_in_front=("/usr/local/cuda/lib64/libcupti.so.12",))
    assert stub in found(judged, "warn")["libcuda"]
    assert "libcupti.so.12" in found(judged, "warn")["CUPTI copies"]
    # The copy that is in use anyway is no other one.
    assert found(machine(cupti_in_front=(LIBCUPTI,)), "warn") == {}


def test_09_mixed_machine(case):
    folder, expected = case("09")
    gpus = facts.listed_gpus((folder / "nvidia-smi.csv").read_text())
    judged = replace(machine(devices=4), gpus=gpus)
    for selected in range(4):
        failed = found(replace(judged, selected=selected), "fail")
        if selected in expected["supported"]:
            assert failed == {}
        else:
            (text,) = failed.values()
            assert expected["unsupported"][str(selected)] in text
            assert f"compute capability {gpus[selected].compute_capability}" in text
            assert gpus[selected].name in text
            assert "GPU 1 (NVIDIA A100-PCIE-40GB) or GPU 3 (NVIDIA T4)" in text
    warned = found(replace(judged, selected=1), "warn")
    assert {"GPU 0", "GPU 2"} <= set(warned) and "GPU 3" not in warned


def test_45_integrated_gpu_is_kept(case):
    folder, expected = case("45")
    (gpu,) = facts.listed_gpus((folder / "nvidia-smi.csv").read_text())
    assert expected["device_kept"] and expected["peak_bandwidth"] is None
    assert (gpu.name, gpu.memory_byte, gpu.sm_clock_max) == ("Orin (nvgpu)", None, None)
    judged = replace(machine(), gpus=(gpu,))
    assert "GPU 0" in found(judged, "ok")
    assert "roofprobe ceilings" in found(judged, "warn")["DRAM counters"]
    orin = replace(gpu, chip="GA10B", memory_byte=61_000_000_000, integrated=True)
    judged = replace(machine(chips=("GA10B",)), gpus=(orin,))
    assert "L2 roofline" in found(judged, "warn")["DRAM counters"]
    assert "integrated" in found(judged, "ok")["GPU 0"]


# -- Every status its own class ------------------------------------------------------------


def test_statuses_have_classes_of_their_own():
    codes = (26, 33, 35, *range(38, 47))
    kinds = [refusals.of_status(code, wsl=False).kind for code in codes]
    assert len(set(kinds)) == len(codes)
    assert all(issubclass(kind, errors.CuptiError) for kind in kinds)
    groups = {
        26: errors.CountersBusyError,
        35: errors.CounterPermissionError,
        39: errors.CountersBusyError,
        40: errors.CounterPermissionError,
        45: errors.UnsupportedDeviceError,
    }
    for code, group in groups.items():
        assert issubclass(refusals.of_status(code, wsl=False).kind, group)
    assert refusals.of_status(999, wsl=False) is None
    assert refusals.of_status(None, wsl=True) is None


@pytest.mark.parametrize(
    ("feature", "level", "code"),
    [
        ("architecture", "unsupported", 27),
        ("vgpu", "disabled", 40),
        ("vgpu", "unsupported", 33),
        ("confidential_compute", "unsupported", 41),
        ("cmp", "unsupported", 42),
        ("sli", "unsupported", 44),
        ("sli", "disabled", 44),
        ("wsl", "unsupported", 45),
        ("overall", "unsupported", 27),  # no feature is named
    ],
)
def test_what_cupti_does_not_support_fails_by_name(feature, level, code):
    support = SUPPORTED | {"overall": "unsupported", feature: level}
    assert refusals.status_of_support(support) == code
    failed = found(machine(gpu={"support": support, "granted": False}), "fail")
    (check,) = failed
    assert check == ("platform" if code == 45 else "GPU 0")
    assert refusals.of_status(code, wsl=False).cause in failed[check]


@pytest.mark.parametrize(
    ("module", "answers", "said"),
    [
        ("580.65.06", True, "driver 580.65.06 for CUDA 13.0"),
        (None, True, "driver for CUDA 13.0"),
        ("580.65.06", False, "driver 580.65.06 that does not answer"),
        (None, False, "no driver"),
    ],
)
def test_errors_name_cupti_and_driver(monkeypatch, module, answers, said):
    def cuda() -> str:
        if not answers:
            raise errors.CuptiLibraryError("cuInit failed")
        return "13.0"

    monkeypatch.setattr(refusals, "driver_version", lambda: module)
    monkeypatch.setattr(cupti, "cuda_driver_version", cuda)
    monkeypatch.setattr(cupti._native, "cupti_version", lambda: 130001)
    assert f"(CUPTI 13.0.1, {said}" in str(cupti._refused("asked", 35))
    assert f"(CUPTI 13.0.1, {said}" in str(cupti._refused("asked", 999))


def test_errors_name_who_and_what_is_in_the_way(under_nsys):
    """In a process of their own: which copies of a library are loaded cannot be taken back."""
    cupti.load()
    assert f"most likely {SEEN_OF_NSYS}" in str(cupti._refused("asked", 39))
    code = (
        "import ctypes, shutil, tempfile\n"
        "from roofprobe.counters import cupti\n"
        "first = cupti.load()\n"
        "for code in (15, 999):\n"
        "    assert 'more than one' not in str(cupti._refused('asked', code))\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    second = shutil.copy(first, folder)\n"
        "    ctypes.CDLL(second)\n"
        "    for code in (15, 999):\n"
        "        said = cupti._refused('asked', code)\n"
        "        assert said.code == code\n"
        "        assert 'asked; this process has loaded more than one' in str(said), said\n"
        "        assert 'smaller' not in str(said) and first in str(said) and second in str(said)\n"
        "    assert 'more than one' not in str(cupti._refused('asked', 35))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_supported_device_has_no_status():
    assert refusals.status_of_support(SUPPORTED) is None
    assert refusals.status_of_support({}) is None
    assert refusals.status_of_support(SUPPORTED | {"vgpu": "unknown"}) is None
    assert refusals.status_of_support({"overall": "unknown"}) is None


# -- Permission ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ({"admin_only": False, "capabilities": ()}, "ok"),
        ({"admin_only": True, "capabilities": ("CAP_SYS_ADMIN",)}, "ok"),
        ({"admin_only": True, "capabilities": ("CAP_PERFMON",), "driver": "580.65.06"}, "ok"),
        ({"admin_only": True, "capabilities": ("CAP_PERFMON",), "driver": "550.90.07"}, "fail"),
        ({"admin_only": True, "capabilities": ()}, "fail"),
        (
            {
                "admin_only": True,
                "capabilities": ("CAP_SYS_ADMIN",),
                "own_user_namespace": True,
            },
            "fail",
        ),
        ({"admin_only": None, "capabilities": ()}, "warn"),
    ],
)
def test_permission_by_what_the_system_says(host, status):
    assert "permission" in found(machine(**host, gpu={"granted": None}), status)


def test_cupti_has_the_last_word_on_permission():
    assert "permission" in found(machine(admin_only=True, capabilities=()), "ok")
    judged = machine(admin_only=False, gpu=refused(35))
    assert set(found(judged, "fail")) == {"permission"}
    # What is done already is not advised.
    assert "NVreg" not in found(judged, "fail")["permission"]
    assert "sandbox" in found(judged, "fail")["permission"]
    judged = machine(own_user_namespace=True, gpu=refused(35))
    assert "in its own user namespace only" in found(judged, "fail")["permission"]
    for able in (judged, machine(admin_only=None, driver=None, gpu=refused(35))):
        assert "--cap-add" not in found(able, "fail")["permission"]
        assert "NVreg_RestrictProfilingToAdminUsers=0" in found(able, "fail")["permission"]
    denied = SelfTest((Counted("copy", 2**31, failure=Failure("refused", 35)),))
    assert set(found(machine(self_test=denied), "fail")) == {"permission"}


def test_proc_files_are_read():
    status = "Name:\tpython3\nUid:\t1000\t0\t1000\t1000\nCapPrm:\t0\nCapEff:\t{}\n"
    assert facts.effective_uid(status) == 0
    # Docker's default, all, and perfmon alone.
    assert facts.capabilities(status.format("00000000a80425fb")) == ()
    every = ("CAP_SYS_ADMIN", "CAP_PERFMON")
    assert facts.capabilities(status.format("000001ffffffffff")) == every
    assert facts.capabilities(status.format("0000004000000000")) == ("CAP_PERFMON",)
    assert facts.capabilities("") == ()
    params = "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\n{}EnableMSI: 1\n"
    assert facts.admin_only(params.format("RmProfilingAdminOnly: 1\n")) is True
    assert facts.admin_only(params.format("RmProfilingAdminOnly: 0\n")) is False
    assert facts.admin_only(params.format("")) is None
    assert facts.own_user_namespace("         0          0 4294967295\n") is False
    assert facts.own_user_namespace("         0     100000      65536\n") is True
    assert facts.own_user_namespace("") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:09:56 UTC\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            "580.65.06",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n",
            "580.159.03",
        ),
        ("", None),
    ],
)
def test_driver_version_is_read(text, version):
    assert refusals.driver_version(text) == version


@pytest.mark.parametrize(
    ("files", "cgroup", "mounts", "environment", "said"),
    [
        (["/.dockerenv"], "", "", {}, "/.dockerenv"),
        ([], "0::/kubepods.slice/pod1\n", "", {}, "kubepods in /proc/self/cgroup"),
        ([], "0::/\n", "overlay / overlay rw,relatime 0 0\n", {}, "overlay as root"),
        ([], "", "", {"APPTAINER_CONTAINER": "/x.sif"}, "APPTAINER_CONTAINER"),
        ([], "", "", {"container": "podman"}, "container=podman"),
        ([], "0::/user.slice\n", "/dev/sda1 / ext4 rw 0 0\n", {}, None),
    ],
)
def test_containers_are_recognised(files, cgroup, mounts, environment, said):
    shown = facts.container(files, cgroup, mounts, environment)
    assert shown is None if said is None else said in shown


# -- Others at the counters ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "nsys (NSYS_PROFILING_SESSION_ID)"),
        ({"NV_NSIGHT_INJECTION_PORT_BASE": "49152"}, "ncu (NV_NSIGHT"),
        ({"NV_SANITIZER_INJECTION_PORT_BASE": "49152"}, "compute-sanitizer"),
        ({"CUDA_INJECTION64_PATH": "/opt/x/libToolsInjection64.so"}, "libToolsInjection"),
        ({"LD_PRELOAD": "/a/libc.so:/b/libInterceptorInjectionTarget64.so"}, "Interceptor"),
        ({"LD_PRELOAD": "/opt/cs/libsanitizer-collection.so"}, "libsanitizer-collection"),
        ({"NVTX_INJECTION64_PATH": "/opt/x/libnvtx.so"}, "NVTX_INJECTION64_PATH"),
        ({"KINETO_USE_DAEMON": "1"}, "KINETO_USE_DAEMON"),
    ],
)
def test_injected_tools_are_named(environment, named):
    """A tool in the process is a fault once CUPTI says so; where known work counts, it is none."""
    for test in (None, recorded_self_test()):
        judged = machine(environment=environment, self_test=test)
        assert found(judged, "fail") == {}
        assert named in found(judged, "warn")["injected tools"]
    refusing = found(machine(environment=environment, gpu=refused(39)), "fail")
    assert set(refusing) == {"injected tools"}
    assert named in refusing["injected tools"] and "run without it" in refusing["injected tools"]


@pytest.mark.parametrize(
    "library", ["/usr/lib/libtcmalloc.so.4", LIBCUPTI, "/opt/llvm/libsanitizer_common.so"]
)
def test_what_is_no_tool_is_not_named(library):
    assert "none" in found(machine(environment={"LD_PRELOAD": library}), "ok")["injected tools"]


NSYS = {
    "NSYS_PROFILING_SESSION_ID": "1",
    "CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so",
    "KINETO_USE_DAEMON": "1",
}
SEEN_OF_NSYS = (
    "nsys (NSYS_PROFILING_SESSION_ID), CUDA_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so"
)


@pytest.fixture
def under_nsys(monkeypatch):
    for name, value in NSYS.items():
        monkeypatch.setenv(name, value)


def test_a_measurement_names_the_tool_in_its_process(under_nsys):
    """In the doctor's words; without a sign of one, all that it can be."""
    refusal = refusals.met(39)
    assert refusal.cause == (
        f"another CUPTI client is active in this process, most likely {SEEN_OF_NSYS}, "
        "KINETO_USE_DAEMON"
    )
    assert (refusal.kind, refusal.fix) == (errors.OtherSubscriberError, "run without it")
    judged = machine(environment=NSYS, gpu=refused(39))
    assert found(judged, "fail") == {"injected tools": f"{refusal.cause} | {refusal.fix}"}
    # Not to a GPU that is too old, nor to a user without rights.
    for code in (27, 35, 43):
        assert refusals.met(code) == refusals.of_status(code, wsl=False)
    assert refusals.met(999) is refusals.met(None) is None


def test_without_a_sign_of_a_tool_a_measurement_names_whoever_it_can_be(monkeypatch):
    for name in (*NSYS, "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    assert "(nsys, ncu, cuda-gdb, compute-sanitizer or a profiler" in refusals.met(39).cause
    assert refusals.met(39) == refusals.of_status(39, wsl=False)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (
            "/opt/nvidia/nsight-compute/2025.3.1/target/linux-desktop-glibc_2_11_3-x64/"
            "libcuda-injection.so",
            "ncu (",
        ),
        ("/opt/nvidia/nsight-systems/2025.3/lib/libToolsInjection64.so", "nsys ("),
        ("/usr/local/cuda/compute-sanitizer/libsanitizer-collection.so", "compute-sanitizer ("),
        ("/home/duncu/libmy_injection.so.1", ""),
    ],
)
def test_a_tool_is_named_by_its_library(path, named):
    maps = f"7f01-7f02 r-xp 00000000 08:01 11                         {path}\n"
    maps += maps + "7f02-7f03 r-xp 00000000 08:01 12 /usr/lib/libtcmalloc.so.4\n7f04-7f05 rw-p 0\n"
    assert refusals.injected({}, maps) == (f"{named}{path})" if named else path,)
    # Told once where the environment has told it.
    told = refusals.injected({"CUDA_INJECTION64_PATH": path}, maps)
    assert told == (f"CUDA_INJECTION64_PATH={path}",)


def test_libraries_of_this_process_are_no_tools():
    import torch  # noqa: F401  # with all that it loads

    assert refusals.injected({}, Path("/proc/self/maps").read_text()) == ()


def listed(proc: Path, pid: int, name: str, parent: int, **files: str) -> None:
    """Puts a process into a folder made like /proc."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    state = files.pop("state", "S")
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194304 1\n")
    for file, text in files.items():
        (folder / file).write_text(text)


NATIVE = "7f01-7f02 r-xp 0 08:01 1 /venv/roofprobe/_native.cpython-312-x86_64-linux-gnu.so\n"


def test_who_holds_the_counters_is_seen_among_the_processes(tmp_path):
    listed(tmp_path, 1, "systemd", 0, maps="")
    listed(tmp_path, 5, "ncu) S 1 (", 1, maps="")  # any name is a name
    listed(tmp_path, 12, "nv-hostengine", 1, maps="")
    listed(tmp_path, 13, "ncu", 1, state="Z", maps="")  # has ended
    listed(tmp_path, 14, "ncu", 1, maps="")
    listed(tmp_path, 15, "nvidia-cuda-mps", 1, maps="")
    # This one, with a shell, a loader's worker and what that has started.
    listed(tmp_path, 20, "roofprobe", 1, maps=NATIVE)
    listed(tmp_path, 21, "python3", 20, maps=NATIVE)
    listed(tmp_path, 22, "python3", 21, maps=NATIVE)
    listed(tmp_path, 23, "python3", 22, maps=NATIVE)
    # Another one with workers, and one of another user.
    listed(tmp_path, 30, "python3", 1, maps=NATIVE)
    listed(tmp_path, 31, "python3", 30, maps=NATIVE)
    listed(tmp_path, 40, "python3", 1, cmdline="python3\0-m\0roofprobe.train\0--dummy\0")
    listed(tmp_path, 41, "roofprobe", 1, cmdline="/v/bin/python3\0/v/bin/roofprobe\0verify\0")
    listed(tmp_path, 42, "grep", 1, cmdline="grep\0-r\0roofprobe\0")
    listed(tmp_path, 43, "python3", 1, cmdline="python3\0-m\0roofprober\0")
    # It ended while it was read.
    (tmp_path / "44").mkdir()
    assert refusals.processes(tmp_path, own=21) == (
        "nv-hostengine (process 12)",
        "ncu (process 14)",
        "nvidia-cuda-mps (process 15)",
        "roofprobe (process 30)",
        "roofprobe (process 40)",
        "roofprobe (process 41)",
    )
    assert refusals.processes(tmp_path / "nothing", own=21) == ()


def test_another_roofprobe_is_seen_and_what_this_process_starts_is_not(monkeypatch):
    monkeypatch.setattr(refusals, "_SCAN_LIMIT", 60.0)  # on a loaded machine, too
    code = "import roofprobe._native, os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    child = [sys.executable, "-c", code]
    # Whoever started it has ended, so that it is nobody's here.
    orphan = [sys.executable, "-c", f"import subprocess; subprocess.Popen({child!r})"]
    for command, seen in ((child, False), (orphan, True)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as started:
            pid = int(started.stdout.readline())
            if seen:
                started.wait()
            assert (f"roofprobe (process {pid})" in refusals.processes()) is seen
            started.stdin.close()


def test_a_process_that_cannot_be_read_holds_nothing_up(tmp_path, monkeypatch):
    listed(tmp_path, 3, "ncu", 1, maps="")
    listed(tmp_path, 4, "python3", 1)
    os.mkfifo(tmp_path / "4/maps")  # whoever opens it waits
    monkeypatch.setattr(refusals, "_SCAN_LIMIT", 0.2)
    began = time.monotonic()
    assert refusals.processes(tmp_path, own=99) == ("ncu (process 3)",)
    assert time.monotonic() - began < 2
    with (tmp_path / "4/maps").open("w"):  # lets it go
        pass


@pytest.mark.parametrize(
    ("processes", "environment", "by", "fix"),
    [
        (("ncu (process 7)",), {}, "by ncu (process 7)", "stop it or run without it"),
        (("roofprobe (process 8)",), {}, "by roofprobe (process 8)", "stop it or run without it"),
        ((), {"NSYS_PROFILING_SESSION_ID": "1"}, "by nsys (NSYS_PROFILING", "stop it or run"),
        ((), {"KINETO_USE_DAEMON": "1"}, None, "stop the other profiler"),
        (
            ("dcgm-exporter (process 9)", "nv-hostengine (process 7)"),
            {},
            "by DCGM's profiling fields (before Hopper), with dcgm-exporter (process 9), "
            "nv-hostengine (process 7) running",
            "dcgmi profile --pause",
        ),
        (
            ("nsys (process 6)", "nv-hostengine (process 7)"),
            {},
            "by nsys (process 6) or by DCGM's",
            "stop the other profiler; with DCGM: dcgmi",
        ),
    ],
)
def test_a_measurement_names_who_has_the_counters(monkeypatch, processes, environment, by, fix):
    for name in NSYS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(refusals, "processes", lambda: processes)
    refusal = refusals.met(26)
    assert refusal.kind is errors.HardwareBusyError
    assert refusal.fix.startswith(fix)
    if by is None:
        assert "(DCGM's profiling fields, nsys, ncu or another process" in refusal.cause
        return
    assert refusal.cause.startswith(f"the counters are taken, most likely {by}")
    ampere = {"compute_capability": "8.0", "chip": "GA100"}
    judged = machine(processes=processes, environment=environment, gpu=refused(26) | ampere)
    told = found(judged, "fail")["other profilers"]
    assert told == f"{refusal.cause} | {refusal.fix}"


def test_another_roofprobe_is_warned_of_beforehand():
    judged = machine(processes=("roofprobe (process 8)",))
    assert "roofprobe (process 8) runs on this" in found(judged, "warn")["other profilers"]


def test_another_subscriber_without_a_trace_in_the_environment():
    failed = found(machine(gpu=refused(39)), "fail")
    assert set(failed) == {"injected tools"} and "CUPTI client" in failed["injected tools"]


def test_mps_counts_everybody():
    for shared in ({"processes": ("nvidia-cuda-mps",)}, {"mps_pipe": "/mps/pipe/control"}):
        judged = machine(**shared)
        assert set(found(judged, "fail")) == {"MPS"}
        assert refusals.MPS_SHARED in found(judged, "fail")["MPS"]  # in the refusal's words
        assert "ROOFPROBE_ALLOW_MPS=1" in found(judged, "fail")["MPS"]
        # Measuring would be refused, and not one by one for each piece of known work.
        assert not may_measure(judged)
        allowed = machine(**shared, environment={"ROOFPROBE_ALLOW_MPS": "1"})
        assert found(allowed, "fail") == {} and may_measure(allowed)
        assert "marked as shared" in found(allowed, "warn")["MPS"]
    assert "listens at /mps/pipe/control" in found(judged, "fail")["MPS"]
    assert "not in use" in found(machine(), "ok")["MPS"] and may_measure(machine())


def test_mps_of_another_container_is_seen_by_its_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    control, processes = tmp_path / "control", tmp_path / "proc"
    processes.mkdir()
    assert not refusals.under_mps(processes)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(control))
        daemon.listen()
        assert refusals.mps_control() == control
        assert refusals.under_mps(processes)
        assert gather._host().mps_pipe == str(control)
    # Its daemon was killed, so that nobody listens.
    assert control.exists() and refusals.mps_control() is None
    assert not refusals.under_mps(processes)
    # Of another kind of file nothing can be told.
    control.unlink()
    os.mkfifo(control)
    assert refusals.under_mps(processes)


# -- Software ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("software", "status", "check", "part"),
    [
        ({"cuda_driver": "12.8"}, "fail", "CUPTI", "newer than the driver"),
        ({"cuda_driver": "12.8", "cupti_version": "API 26"}, "ok", "CUPTI", "12.8 (API 26)"),
        ({"cuda_driver": "12.4", "cupti_version": "API 26"}, "warn", "CUPTI", "newer"),
        ({"cuda_driver": "12.8", "cupti_version": "API 27"}, "warn", "CUPTI", "12.9 (API 27)"),
        ({"loaded_cuda": (LIBCUDA, "/a/compat/libcuda.so.1")}, "warn", "libcuda", "/a/compat"),
        ({"cuda_driver": "11.8", "cupti_version": "API 26"}, "fail", "CUPTI", "newer"),
        ({"cupti_version": "13.4.0"}, "warn", "CUPTI", "newer than the driver"),
        ({"cuda_driver": "13.2"}, "ok", "CUPTI", "13.0.1"),
        ({"cupti_failure": Failure("no libcupti found")}, "fail", "CUPTI", "no libcupti"),
        ({"torch_cuda": None, "devices": 0}, "fail", "PyTorch", "built without CUDA"),
        ({"torch": None, "torch_failure": Failure("OSError: x")}, "fail", "PyTorch", "OSError: x"),
        ({"devices": 0, "environment": {"CUDA_VISIBLE_DEVICES": ""}}, "fail", "PyTorch", "''"),
        ({"cupti_python": None}, "warn", "kernel records", "not installed"),
        ({"cupti_python": "12.6.0"}, "warn", "kernel records", "'cupti-python==13.*'"),
        ({"ncu": None}, "n/a", "ncu", "not installed"),
        ({"ncu": Ncu("/usr/bin/ncu", "2021.1", ("GA100",))}, "warn", "ncu", "does not know"),
        ({"chips": ("GA100",)}, "fail", "GPU 0", "does not know the chip"),
    ],
)
def test_software(software, status, check, part):
    assert part in found(machine(**software), status)[check]


def test_wsls_libcuda_is_made_of_two():
    two = ("/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/drivers/nv/libcuda.so.1.1")
    assert "libcuda" not in found(machine(**WSL, loaded_cuda=two), "warn")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("CUDA_ERROR_UNKNOWN", "--gpus all"),
        ("CUDA_ERROR_NO_DEVICE", "--gpus all"),
        ("CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot after a driver update"),
        ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat folder"),
    ],
)
def test_a_driver_that_does_not_start_fails_once_and_with_its_remedy(error, fix):
    for version in ("580.159.03", None):
        failed = found(without_a_device(error, driver=version), "fail")
        assert set(failed) == {"driver"}
        assert error in failed["driver"] and fix in failed["driver"]


def without_a_device(error: str, *, mig: bool = False, **changes) -> Facts:
    return machine(
        **{"cuda_driver": None, "devices": 0, **changes},
        driver_failure=Failure(f"cuInit failed with {error}"),
        gpu={"index": None, "mig": mig, "granted": None},
    )


@pytest.mark.parametrize(
    ("environment", "mig", "fix"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, False, "CUDA_VISIBLE_DEVICES is ''"),
        ({}, True, "MIG is on for NVIDIA H200"),
    ],
)
def test_hidden_gpus_are_no_fault_of_the_driver(environment, mig, fix):
    judged = without_a_device("CUDA_ERROR_NO_DEVICE", mig=mig, environment=environment)
    assert set(found(judged, "fail")) == {"PyTorch"}
    assert fix in found(judged, "fail")["PyTorch"]
    assert "see PyTorch" in found(judged, "n/a")["driver"]
    # Where PyTorch cannot say it and nothing lists a GPU, the driver's line does.
    judged = replace(judged, gpus=())
    if environment:
        assert fix in found(judged, "fail")["driver"]


def test_mig_without_an_instance_is_named():
    judged = machine(devices=0, gpu={"index": None, "mig": True, "granted": None})
    assert "MIG is on for NVIDIA H200" in found(judged, "fail")["PyTorch"]
    assert "MIG is on" in found(judged, "n/a")["hidden GPU"]


def test_volta_needs_a_pytorch_for_cuda_12():
    volta = {"chip": "GV100", "compute_capability": "7.0"}
    judged = machine(chips=("GV100",), gpu=volta)
    assert "PyTorch built for CUDA 12" in found(judged, "warn")["GPU 0"]
    judged = machine(chips=("GV100",), torch_cuda="12.8", gpu=volta)
    assert "GPU 0" in found(judged, "ok")


def test_a_gpu_that_is_not_there():
    assert "--gpu" in found(machine(selected=3), "fail")["GPU"]


def test_a_hidden_gpu_takes_no_other_findings_name():
    hidden = {"index": None, "granted": None}
    judged = machine(selected=3, gpu=hidden, environment={"CUDA_VISIBLE_DEVICES": "1"})
    assert "--gpu" in found(judged, "fail")["GPU"]
    assert "hidden by CUDA_VISIBLE_DEVICES" in found(judged, "n/a")["hidden GPU"]


def test_nvidia_smi_and_cuda_are_merged_by_uuid():
    listed = facts.listed_gpus(
        "index, name, uuid, compute_cap, memory.total [MiB], clocks.max.sm [MHz], power.limit [W]\n"
        "0, Tesla P4, GPU-aaaa, 6.1, 7680 MiB, 1531 MHz, 75.00 W\n"
        "1, NVIDIA H200, GPU-bbbb, 9.0, 143771 MiB, 1980 MHz, 700.00 W\n"
        "2, Old, [Unknown Error], [N/A], [Not Supported], N/A, [Insufficient Permissions]\n"
    )
    # CUDA puts the fastest first, so that its 0 is nvidia-smi's 1.
    seen = replace(H200, uuid="GPU-bbbb", sm_clock_max=None, power_limit=None)
    first, second, third = facts.merged(listed, [seen], {})
    assert (first.index, first.chip, first.sm_clock_max, first.power_limit) == (
        0,
        "GH100",
        1.98e9,
        700.0,
    )
    assert (second.name, second.index, second.memory_byte) == ("Tesla P4", None, 7680 * 2**20)
    assert third == Gpu("Old", integrated=True)  # [Not Supported], as integrated GPUs answer


HEADER = "index, name, uuid, compute_cap, memory.total [MiB], mig.mode.current\n"
FIRST = "0, NVIDIA A100-SXM4-40GB, GPU-aaaa, 8.0, 40960 MiB, Enabled\n"
SECOND = "1, NVIDIA A100-SXM4-40GB, GPU-bbbb, 8.0, 40960 MiB, Disabled\n"


@pytest.mark.parametrize(
    "text",
    [
        HEADER + FIRST + SECOND + "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n",
        HEADER + FIRST + "\n" + SECOND,
        "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error\n"
        + HEADER
        + FIRST
        + SECOND,
        (HEADER + FIRST + SECOND).replace("\n", "\r\n"),
    ],
)
def test_what_nvidia_smi_says_beside_its_table_is_passed_over(text):
    first, second = facts.listed_gpus(text)
    assert (first.index, first.memory_byte, first.mig) == (0, 40960 * 2**20, True)
    assert (second.index, second.uuid, second.mig) == (1, "GPU-bbbb", False)


@pytest.mark.parametrize("text", ["", "No devices were found\n", "Failed to initialize NVML\n"])
def test_nvidia_smi_without_a_table_lists_nothing(text):
    assert facts.listed_gpus(text) == ()


@pytest.mark.parametrize(
    ("memory", "integrated"),
    [
        ("[N/A]", True),
        ("Not Supported", True),
        ("[Insufficient Permissions]", None),
        ("[Unknown Error]", None),
        ("40960 MiB", None),
    ],
)
def test_a_gpu_is_not_integrated_because_its_memory_is_unknown(memory, integrated):
    text = f"index, name, memory.total [MiB]\n0, NVIDIA A100, {memory}\n"
    (gpu,) = facts.listed_gpus(text)
    assert gpu.integrated is integrated
    judged = replace(machine(), gpus=(gpu,))
    assert ("DRAM counters" in found(judged, "warn")) is (integrated is True)
    assert ("integrated" in found(judged, "ok")["GPU 0"]) is (integrated is True)


def test_a_gpu_of_which_no_memory_was_asked_is_not_integrated():
    gpus = facts.listed_gpus("index, name, compute_cap\n0, NVIDIA A100, 8.0\n")
    judged = replace(machine(), gpus=gpus)
    assert "integrated" not in found(judged, "ok")["GPU 0"]
    assert "DRAM counters" not in found(judged, "warn")


def test_mig_instances_are_read():
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-33ce-6d2b-8ba7-1a3dbe5f0001)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)\n"
        "  MIG 1c.3g.20gb  Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)\n"
    )
    instances = facts.mig_instances(text)
    for prefix in ("GPU-", "MIG-"):
        for uuid, profile in (
            ("c7384736-a75d-5afc-978f-d2f1294409fd", "3g.20gb"),
            ("a28ad590-3fda-56dd-84fc-0a0b96edc58d", "1c.3g.20gb"),
            ("5d5ba0d6-33ce-6d2b-8ba7-1a3dbe5f0001", None),  # the GPU itself
        ):
            (gpu,) = facts.merged([], [replace(H200, uuid=prefix + uuid)], instances)
            assert gpu.instance == profile
    named = replace(H200, uuid=None, name="NVIDIA A100-SXM4-40GB MIG 2g.10gb")
    assert facts.merged([], [named], {})[0].instance == "2g.10gb"


# -- The self-test -------------------------------------------------------------------------


def with_counted(work: str, **changes) -> Facts:
    test = recorded_self_test()
    counted = tuple(replace(c, **changes) if c.work == work else c for c in test.counted)
    return replace(HEALTHY, self_test=replace(test, counted=counted))


EXPECTED = 2.0 * 4096**3


@pytest.mark.parametrize(
    ("work", "flop", "status"),
    [
        ("tf32", {"tensor_tf32": EXPECTED * 1.0009}, "ok"),
        ("tf32", {"tensor_tf32": EXPECTED * 1.0011}, "fail"),
        ("tf32", {"tensor_tf32": EXPECTED * 0.9989}, "fail"),
        ("bf16", {"tensor_bf16": EXPECTED / 2}, "fail"),
        ("fp16", {"tensor_fp16": 0.0, "sass_fp16": EXPECTED}, "fail"),
        ("fp16", {"tensor_fp16": None}, "fail"),
        ("fp32", {"sass_fp32": EXPECTED * 1.0049}, "ok"),
        ("fp32", {"sass_fp32": EXPECTED * 1.0051}, "fail"),
        ("fp32", {"sass_fp32": 0.0}, "fail"),
        ("fp32", {"sass_fp32": None}, "fail"),
        ("fp64", {"tensor_fp64": 0.0, "sass_fp64": EXPECTED * 1.0002}, "ok"),
        ("fp64", {"tensor_fp64": EXPECTED, "sass_fp64": None}, "ok"),
        ("fp64", {"tensor_fp64": 0.0, "sass_fp64": 0.0}, "fail"),
    ],
)
def test_products_are_held_to_2mnk(work, flop, status):
    assert f"self-test: {work} GEMM" in found(with_counted(work, flop=flop), status)


@pytest.mark.parametrize(
    ("changes", "check", "status"),
    [
        ({"byte": {"dram_read": 2.19e9, "dram_write": 2.148e9}}, "bytes", "ok"),
        ({"byte": {"dram_read": 2.20e9, "dram_write": 2.148e9}}, "bytes", "fail"),
        ({"byte": {"dram_read": 2.148e9, "dram_write": 1.1e9}}, "bytes", "fail"),
        ({"byte": {}}, "bytes", "n/a"),
        ({"byte": {"dram_read": None, "dram_write": 2.148e9}}, "bytes", "fail"),
        ({"coverage": 0.0, "trusted": False}, "SASS coverage", "fail"),
        ({"coverage": 0.97}, "SASS coverage", "fail"),
        ({"flop": {"sass_fp32": 2.0**29}}, "SASS coverage", "fail"),
        ({"flop": {"sass_fp32": None}}, "SASS coverage", "fail"),
        ({"skipped": "the GPU has too little free memory for it"}, "SASS coverage", "warn"),
    ],
)
def test_the_copy_is_held_to_its_size(changes, check, status):
    assert f"self-test: {check}" in found(with_counted("copy", **changes), status)


def test_shared_mig_bytes_are_not_a_fault():
    judged = with_counted("copy", byte={"dram_read": None, "dram_write": None})
    judged = replace(judged, gpus=(replace(H200, instance="1c.3g.71gb"),))
    assert set(found(judged, "fail")) == set()
    assert "self-test: bytes" in found(judged, "n/a")


def test_what_a_chip_lacks_is_not_missed():
    test = recorded_self_test()
    kept = tuple(c for c in test.counted if c.work not in ("tf32", "bf16"))
    turing = replace(H200, chip="TU104", compute_capability="7.5", name="NVIDIA T4")
    judged = replace(HEALTHY, gpus=(turing,), self_test=replace(test, counted=kept))
    assert {"self-test: tf32 GEMM", "self-test: bf16 GEMM"} <= set(found(judged, "n/a"))


def test_a_self_test_that_dies_fails_once():
    died = SelfTest(
        recorded_self_test().counted[:2],
        Failure("died of SIGSEGV while counting a GEMM in tf32"),
    )
    judged = replace(HEALTHY, self_test=died)
    assert set(found(judged, "fail")) == {"self-test"}
    assert found(judged, "n/a")["self-test: tf32 GEMM"].startswith("not reached")
    assert "self-test: fp32 GEMM" in found(judged, "ok")


def test_one_cause_fails_once():
    busy = SelfTest(
        tuple(replace(c, failure=Failure("busy", 26)) for c in recorded_self_test().counted)
    )
    assert set(found(replace(HEALTHY, self_test=busy), "fail")) == {"other profilers"}


# -- Probing -------------------------------------------------------------------------------


@pytest.fixture
def broken_child(tmp_path, monkeypatch):
    """Puts a program of one's own in the place of the child."""

    def put(body: str) -> None:
        (tmp_path / "broken_child.py").write_text(
            f"import json, os, sys, time\nstream = open(sys.argv[2], 'a')\n{body}\n"
        )
        monkeypatch.setattr(child, "__name__", "broken_child")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return put


SAY = 'stream.write(\'{"torch": "2.0"}\\n{"stage": "asking"}\\n{"half\'); stream.flush()\n'


@pytest.mark.parametrize(
    ("body", "end"),
    [
        (SAY + "time.sleep(600)", "gave no answer and was stopped after 2 s while asking"),
        (SAY + "os.abort()", "died of SIGABRT while asking"),
        (SAY + "print('out of luck'); sys.exit(3)", "ended with status 3 while asking; its last"),
    ],
)
def test_a_probe_that_breaks_leaves_what_it_knew(broken_child, monkeypatch, body, end):
    monkeypatch.setattr(gather, "PROBE_LIMIT", 2.0)
    broken_child(body)
    judged = gather.gather(0)
    assert judged.software.torch == "2.0"
    assert judged.probe_failure.text.startswith(end)
    assert not may_measure(judged)
    failed = found(judged, "fail")
    assert set(failed) == {"probe"} and end in failed["probe"]


def test_a_process_that_hangs_is_ended(tmp_path):
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    run = gather._Run.of([sys.executable, "-c", code], 2.0)
    assert run.end == "gave no answer and was stopped after 2 s"
    assert not Path("/proc", pid.read_text()).exists()


def test_a_self_test_that_breaks_leaves_what_it_knew(broken_child):
    broken_child(
        "from dataclasses import asdict\n"
        "from roofprobe.doctor.facts import Counted\n"
        "stream.write(json.dumps({'counted': asdict(Counted('copy', 5))}) + '\\n')\n"
        "stream.flush(); os.abort()"
    )
    judged = gather.run_self_test(replace(HEALTHY, self_test=None))
    assert judged.self_test.counted == (Counted("copy", 5),)
    assert judged.self_test.failure.text == "died of SIGABRT while starting Python"


def test_a_program_that_cannot_start():
    run = gather._Run.of(["/no/such/program"], 1.0)
    assert run.output == "" and run.end.startswith("could not be started")


def test_libraries_on_the_path_are_found(tmp_path, monkeypatch):
    stubs = tmp_path / "stubs"
    toolkit = tmp_path / "lib64"
    for folder, name in ((stubs, "libcuda.so"), (toolkit, "libcupti.so.12")):
        folder.mkdir()
        (folder / name).touch()
    (toolkit / "libcupti.so").symlink_to(toolkit / "libcupti.so.12")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{stubs}:{toolkit}:/no/such/folder:")
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    host = gather._host()
    assert host.stubs == (str(stubs / "libcuda.so"),)
    assert host.cupti_in_front == (str((toolkit / "libcupti.so.12").resolve()),)
    assert host.environment["NSYS_PROFILING_SESSION_ID"] == "1"
    assert host.uid is not None and host.kernel.startswith("Linux version")


# -- The command ---------------------------------------------------------------------------


def run_without_driver(capsys, *arguments: str) -> tuple[int, str]:
    if ctypes.util.find_library("cuda"):
        pytest.skip("needs a machine without an NVIDIA driver")
    status = main(["doctor", *arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out


def test_without_a_driver_it_says_what_works_instead(capsys):
    status, out = run_without_driver(capsys)
    assert status == 1
    words = " ".join(out.split())
    assert words.count("FAIL") == 1 and "FAIL driver no NVIDIA driver answers" in words
    assert "no hardware counters to read on this machine" in words
    assert "roofprobe.measure(backend='analytic')" in words
    assert "n/a self-test not run: see what failed above" in words
    assert all(len(line) <= 100 for line in out.splitlines() if "libcupti" not in line)


def test_json_has_the_published_schema(capsys):
    published = json.loads((ROOT / "docs/doctor.schema.json").read_text())
    assert published == json.loads(json.dumps(report.schema()))
    validator = jsonschema.Draft202012Validator(published)
    status, out = run_without_driver(capsys, "--json", "--no-self-test")
    body = json.loads(out)
    validator.validate(body)
    assert (status, body["ok"]) == (1, False)
    assert (body["schema"], body["version"]) == ("roofprobe.doctor", 1)
    assert body["facts"]["software"]["torch"]


def test_json_of_a_full_report_has_the_published_schema():
    judged = judge(HEALTHY)
    body = json.loads(report.to_json(report.Report("2026-11-30", "0", True, judged, HEALTHY)))
    jsonschema.validate(body, json.loads((ROOT / "docs/doctor.schema.json").read_text()))
    assert body["facts"]["self_test"]["counted"][0]["byte"]["dram_read"] == 2147549184.0


def test_the_text_says_the_outcome_and_each_fix():
    judged = machine(gpu=refused(35), capabilities=())
    made = report.Report("2026-11-30", "0", False, judge(judged), judged)
    text = report.to_text(made)
    assert re.search(r"^FAIL  permission +CUPTI was refused", text, re.M)
    assert re.search(r"^ +fix: whoever runs the HOST", text, re.M)
    assert text.rstrip().endswith("models a step (--backend analytic).")
    assert "does not work here: permission" in text
    well = report.to_text(report.Report("2026-11-30", "0", True, judge(HEALTHY), HEALTHY))
    assert well.rstrip().endswith("can be read here, and known work is counted right.")
    assert "FAIL" not in well and "warn" not in well


def test_a_negative_gpu_is_wrong_usage(capsys):
    assert main(["doctor", "--gpu", "-1"]) == 2
    assert "numbered from 0" in capsys.readouterr().err


def test_the_doctor_itself_loads_neither_torch_nor_a_driver():
    code = (
        "import sys; from roofprobe.doctor import gather, judgement, report;"
        "print([m for m in ('torch', 'pynvml', 'cupti', 'roofprobe._native') if m in sys.modules])"
    )
    assert gather._Run.of([sys.executable, "-c", code], 60.0).output.strip() == "[]"

"""The doctor on a real GPU: everything that it can measure is right."""

import json

import pytest

from roofprobe.cli import main
from roofprobe.counters import cupti
from roofprobe.doctor import selftest


def diagnosed(capsys, *arguments: str) -> tuple[int, dict, dict]:
    status = main(["doctor", "--json", *arguments])
    body = json.loads(capsys.readouterr().out)
    return status, body, {entry["check"]: entry for entry in body["findings"]}


def test_known_work_is_counted_right(capsys):
    status, body, findings = diagnosed(capsys)
    assert [entry for entry in body["findings"] if entry["status"] == "fail"] == []
    tests = {check for check in findings if check.startswith("self-test")}
    assert tests == {
        "self-test: SASS coverage",
        "self-test: bytes",
        *(f"self-test: {precision} GEMM" for precision in selftest.PRECISIONS),
    }
    assert {findings[check]["status"] for check in tests} == {"ok"}
    for check in ("platform", "driver", "PyTorch", "CUPTI", "GPU 0", "permission"):
        assert findings[check]["status"] == "ok", findings[check]
    assert (status, body["ok"]) == (0, True)
    (gpu,) = [gpu for gpu in body["facts"]["gpus"] if gpu["index"] == 0]
    assert gpu["granted"] and gpu["support"]["overall"] == "supported"
    assert len(body["facts"]["software"]["loaded_cupti"]) == 1


def test_the_self_test_can_be_left_out(capsys):
    status, body, findings = diagnosed(capsys, "--no-self-test")
    assert (status, body["facts"]["self_test"]) == (0, None)
    assert findings["self-test"]["status"] == "n/a"


def test_a_hidden_gpu_is_a_failure_of_pytorch(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status, _, findings = diagnosed(capsys)
    assert status == 1
    assert findings["PyTorch"]["status"] == "fail"
    assert "CUDA_VISIBLE_DEVICES" in findings["PyTorch"]["fix"]


def test_a_gpu_that_is_not_there(capsys):
    status, body, findings = diagnosed(capsys, "--gpu", "99")
    assert (status, findings["GPU"]["status"]) == (1, "fail")
    assert body["facts"]["self_test"] is None


def test_cupti_says_that_the_device_is_supported():
    support = cupti.device_support(0)
    assert support["overall"] == "supported", support
    cupti.require_counters(0)


@pytest.mark.parametrize("variable", ["NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"])
def test_injection_is_named_before_it_is_felt(capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "/no/such/tool")
    status, _, findings = diagnosed(capsys, "--no-self-test")
    assert (status, findings["injected tools"]["status"]) == (0, "warn")
    assert variable in findings["injected tools"]["text"]

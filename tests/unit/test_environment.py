"""What a record says of PyTorch's settings, whichever of its interfaces they were made through."""

import json
import subprocess
import sys

import pytest
import torch

import roofprobe
from roofprobe import environment

# Settings outlive a test, and some cannot be taken back; so each case has a process of its own,
# forked from one that has PyTorch already.
CODE = """
import json, os, sys
import torch
from roofprobe import environment
for case in json.load(sys.stdin):
    if not os.fork():
        exec(case)
        print(json.dumps([case, environment.collect(torch.device("cpu")).precision]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, case
"""
TF32, IEEE = "fp32_precision = 'tf32'", "fp32_precision = 'ieee'"
# Setting -> cuDNN's flag, that of matrix products, the older interface's word for these.
SETTINGS = {
    "pass": (True, False, "highest"),
    # The older interface alone.
    "torch.backends.cudnn.allow_tf32 = False": (False, False, "highest"),
    "torch.backends.cuda.matmul.allow_tf32 = True": (True, True, "high"),
    "torch.set_float32_matmul_precision('medium')": (True, True, "medium"),
    # The newer alone: the older one has no word for TF32 products without the CPU's.
    f"torch.backends.cuda.matmul.{TF32}": (True, True, None),
    f"torch.backends.cuda.matmul.{IEEE}": (True, False, "highest"),
    f"torch.backends.cudnn.conv.{IEEE}": (None, False, "highest"),
    f"torch.backends.cudnn.rnn.{IEEE}": (None, False, "highest"),
    f"torch.backends.cudnn.conv.{IEEE}; torch.backends.cudnn.rnn.{IEEE}": (False, False, "highest"),
    f"torch.backends.{TF32}": (True, True, None),
    # Both: the last one holds, and the older interface's own word does not follow the newer.
    f"torch.backends.cudnn.allow_tf32 = False; torch.backends.{TF32}": (True, True, None),
    f"torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.{IEEE}": (
        *(True, False),
        None,
    ),
}
MORE = {
    f"torch.backends.cudnn.conv.{IEEE}": {
        "cudnn_conv_fp32_precision": "ieee",
        "cudnn_rnn_fp32_precision": "tf32",
    },
    f"torch.backends.cudnn.rnn.{IEEE}": {
        "cudnn_conv_fp32_precision": "tf32",
        "cudnn_rnn_fp32_precision": "ieee",
    },
    "torch.set_float32_matmul_precision('medium')": {"mkldnn_matmul_fp32_precision": "bf16"},
}
KEYS = ("cudnn_allow_tf32", "matmul_allow_tf32", "float32_matmul_precision")


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(list(SETTINGS)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_set_is_recorded(recorded, setting):
    assert tuple(recorded[setting][key] for key in KEYS) == SETTINGS[setting]


@pytest.mark.parametrize("setting", MORE)
def test_what_the_flags_do_not_tell_is_recorded_by_operator(recorded, setting):
    found = {key: value for key, value in recorded[setting].items() if "fp32_precision" in key}
    assert found == MORE[setting]


def test_what_the_flags_tell_is_not_said_twice(recorded):
    for setting in ("pass", f"torch.backends.cuda.matmul.{TF32}"):
        assert not [key for key in recorded[setting] if "fp32_precision" in key]


@pytest.mark.parametrize(("allowed", "word"), [(True, "high"), (False, "highest")])
def test_a_pytorch_without_the_newer_interface(monkeypatch, allowed, word):
    monkeypatch.setattr(environment, "_fp32", lambda operator: None)
    before = torch.get_float32_matmul_precision()
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        found = environment.collect(torch.device("cpu")).precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert tuple(found[key] for key in KEYS) == (torch.backends.cudnn.allow_tf32, allowed, word)


def test_settings_of_the_newer_interface_cost_no_measurement():
    """Every step has run when the environment is asked for; nothing may fail from there on."""
    code = """
import torch, roofprobe
torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"
a = torch.randn(64, 64)
record = roofprobe.measure_step(lambda: a @ a, warmup=1, timed=2)
print(record.complete, record.environment.precision["matmul_allow_tf32"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


# Autocast.


def cast_within(dtype: torch.dtype = torch.bfloat16, enabled: bool = True) -> None:
    with torch.autocast("cpu", dtype, enabled=enabled):
        torch.ones(2, 2) @ torch.ones(2, 2)


def test_autocast_that_is_off_now_is_not_known():
    cast_within()
    assert environment.autocast_dtype() is None
    found = environment.collect(torch.device("cpu")).precision
    assert found["autocast"] is None
    assert "autocast_dtype" not in found


def test_a_step_that_casts_within_itself_is_not_recorded_as_one_that_does_not():
    record = roofprobe.measure_step(cast_within, warmup=1, timed=2, backend="analytic")
    assert record.environment.precision["autocast"] is not False


def test_autocast_that_is_on_is_recorded():
    with torch.autocast("cpu", torch.float16):
        assert environment.autocast_dtype() == "float16"
        found = environment.collect(torch.device("cpu")).precision
    assert (found["autocast"], found["autocast_dtype"]) == (True, "float16")

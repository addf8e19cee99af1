"""Whether work of known size was counted as what it is. Pure.

An N x N x N product is 2 N^3 FLOP. Tensor-core counters gave exactly that on an H200 for tf32,
bf16, fp16 and fp64; an fp32 product on CUDA cores gave 1.000245 of it; a copy of 2 GiB 1.00003 of
the bytes read and 1.0008 written (docs/design.md).
"""

from collections.abc import Iterator
from typing import Final

from roofprobe import metrics, refusals
from roofprobe.coverage import THRESHOLD
from roofprobe.derive import figures
from roofprobe.doctor.facts import Counted, Facts, SelfTest
from roofprobe.doctor.findings import Finding, fail, not_applicable, ok, warn
from roofprobe.record import Measurement
from roofprobe.units import percent, si

TENSOR_TOLERANCE: Final = 1e-3
SASS_TOLERANCE: Final = 5e-3
BYTE_TOLERANCE: Final = 2e-2
# x + 0 is one FMA an element and nothing else.
_CANARY_TOLERANCE: Final = 1e-3

PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16", "fp64")
_COUNTS: Final = "self-test: SASS coverage"
_BYTES: Final = "self-test: bytes"

_WRONG: Final = (
    "do not trust counts of this kind on this machine; report it with the output of roofprobe "
    "doctor --json"
)


def of_record(record: Measurement, work: str, size: int) -> Counted:
    """What a measurement says of a piece of work.

    Args:
        record: The measurement.
        work: As in ``Counted``.
        size: Likewise.
    """
    found = figures(record)
    wanted = ("dram_read", "dram_write")
    byte = {name: found.byte[name] for name in wanted if name in found.byte}
    known = {**found.flop, **byte}
    reasons = {name: figure.reason for name, figure in known.items() if figure.reason is not None}
    coverage = record.coverage
    if coverage is not None and coverage.cause is not None:
        reasons["coverage"] = coverage.cause
    return Counted(
        work,
        size,
        flop={path: figure.value for path, figure in found.flop.items()},
        byte={name: figure.value for name, figure in byte.items()},
        coverage=coverage.fraction if coverage is not None else None,
        trusted=coverage.trusted if coverage is not None else None,
        reasons=reasons,
    )


def judge(facts: Facts, *, possible: bool, wsl: bool) -> Iterator[Finding]:
    """The findings on work of known size.

    Args:
        facts: Everything known.
        possible: Nothing that was found before stands against measuring.
        wsl: The machine is under WSL.
    """
    test = facts.self_test
    if test is None:
        why = "not run" if possible else "not run: see what failed above"
        yield not_applicable("self-test", why)
        return
    if test.failure is not None:
        yield fail(
            "self-test",
            f"the process that measures {test.failure.text}",
            "try fewer kinds of counters (--metrics memory), and report it with the output of "
            "roofprobe doctor --json",
        )
    by_work = {counted.work: counted for counted in test.counted}
    copy = by_work.get("copy")
    if copy is not None:
        yield from _copy(copy, facts, wsl)
    chip = facts.gpu.chip if facts.gpu is not None else None
    for precision in PRECISIONS:
        yield _gemm(by_work.get(precision), precision, test, chip, wsl)


def _copy(counted: Counted, facts: Facts, wsl: bool) -> Iterator[Finding]:
    failed = _failed(counted, _COUNTS, wsl)
    if failed is not None:
        yield failed
        return
    yield _canary(counted)
    yield _bytes(counted, facts)


def _canary(counted: Counted) -> Finding:
    expected = 2 * counted.size / 4
    value = counted.flop.get("sass_fp32")
    seen = percent(counted.coverage, 4)
    if value is None or not counted.trusted or (counted.coverage or 0.0) < THRESHOLD:
        why = counted.reasons.get("coverage") or counted.reasons.get("sass_fp32") or "no value"
        return fail(
            _COUNTS,
            f"CUDA-core instructions cannot be counted here: {why}",
            "look for another tool in this process; tensor-core and byte counts still stand",
        )
    text = f"{si(value, 'FLOP')} of {si(expected, 'FLOP')} counted, {seen} of the stores seen"
    if abs(value - expected) > _CANARY_TOLERANCE * expected:
        return fail(_COUNTS, text, _WRONG)
    return ok(_COUNTS, text)


def _bytes(counted: Counted, facts: Facts) -> Finding:
    values = {name: counted.byte.get(name) for name in ("dram_read", "dram_write")}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        reasons = {counted.reasons[name] for name in missing if name in counted.reasons}
        why = "; ".join(sorted(reasons)) or "the chip has no such counter"
        instance = facts.gpu.instance if facts.gpu is not None else None
        if not counted.byte or instance is not None:
            return not_applicable(_BYTES, f"DRAM bytes are n/a: {why}")
        return fail(_BYTES, f"DRAM bytes have no value: {why}", _WRONG)
    ratios = {name: value / counted.size for name, value in values.items() if value is not None}
    text = f"a copy of {si(float(counted.size), 'B')}: " + ", ".join(
        f"{name.removeprefix('dram_')} {percent(ratio, 5)}" for name, ratio in ratios.items()
    )
    if any(abs(ratio - 1) > BYTE_TOLERANCE for ratio in ratios.values()):
        return fail(_BYTES, text, f"end what else uses the GPU and try again, else: {_WRONG}")
    return ok(_BYTES, text)


def _gemm(
    counted: Counted | None, precision: str, test: SelfTest, chip: str | None, wsl: bool
) -> Finding:
    check = f"self-test: {precision} GEMM"
    tensor, sass = f"tensor_{precision}", f"sass_{precision}"
    if counted is None:
        if test.failure is None and tensor not in metrics.flop_paths(chip):
            return not_applicable(check, f"chip {chip} has no such tensor-core path")
        return not_applicable(check, "not reached")
    failed = _failed(counted, check, wsl)
    if failed is not None:
        return failed
    expected = 2 * counted.size**3
    # fp64 runs on tensor cores where the chip has them for it, fp32 never does without TF32.
    on_tensor = counted.flop.get(tensor) or 0.0
    if on_tensor >= expected / 2:
        value, tolerance, where = on_tensor, TENSOR_TOLERANCE, "tensor cores"
    elif precision in ("fp32", "fp64") and counted.flop.get(sass) is not None:
        value, tolerance, where = (
            on_tensor + (counted.flop[sass] or 0.0),
            SASS_TOLERANCE,
            "CUDA cores",
        )
    else:
        paths = [path for path in (tensor, sass) if path in counted.reasons]
        why = "; ".join(counted.reasons[path] for path in paths)
        return fail(check, f"{si(on_tensor, 'FLOP')} on tensor cores, {why or 'not 2 N^3'}", _WRONG)
    text = f"{percent(value / expected, 7)} of 2 N^3 with N = {counted.size}, on {where}"
    if abs(value - expected) > tolerance * expected:
        return fail(check, text, _WRONG)
    return ok(check, text)


def _failed(counted: Counted, check: str, wsl: bool) -> Finding | None:
    if counted.skipped is not None:
        return warn(check, f"not tested: {counted.skipped}", "end what else uses the GPU")
    failure = counted.failure
    if failure is None:
        return None
    refusal = refusals.of_status(failure.code, wsl=wsl)
    platform = refusal is not None and refusal.of_wsl
    if platform or failure.code in refusals.NOT_OF_THE_GPU:
        return not_applicable(check, "see what failed above")
    fix = refusal.fix if refusal is not None else _WRONG
    return fail(check, failure.text, fix)

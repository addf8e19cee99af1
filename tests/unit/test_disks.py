"""Full disks and read-only ones under ``verify``, ``kernels``, ``ceilings``, ``doctor``, training.

Both are real: a small file system in memory that only the program under test sees.
"""

# ruff: noqa: F401, F811 (fixtures of other modules)

import shlex
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from test_kernels import log, traced
from test_verify import TF32, logs, ncu, recorded

from roofprobe.record import Measurement

ROOT = Path(__file__).parents[2]
OWN_MOUNTS = ["unshare", "--map-root-user", "--mount"]
FULL = "No space left on device"


def _may_mount() -> bool:
    probe = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not _may_mount(), reason="needs user namespaces with mounts")


def tmpfs(folder: Path, *, size: str = "64k", full: bool = False, read_only: bool = False) -> str:
    """Shell commands that put a file system at ``folder``, with what was there before in it."""
    at = shlex.quote(str(folder))
    lines = [
        f"mkdir -p {at}; cp -r {at} {at}.before; mount -t tmpfs -o size={size} none {at}",
        f"cp -r {at}.before/. {at}",
    ]
    if full:
        lines.append(f"cat /dev/zero > {at}/filler 2> /dev/null")
    if read_only:
        lines.append(f"mount -o remount,ro {at}")
    return "; ".join(lines)


def run(prepare: str, *arguments: str, code: str = "", then: str = "") -> tuple[int, str, str]:
    """A verb behind shell commands, which only it sees; or a program of its own."""
    python = [sys.executable, *(["-c", textwrap.dedent(code)] if code else ["-m", "roofprobe"])]
    # ``then`` looks at what the verb left there.
    script = (
        f"{prepare}; {shlex.join([*python, *arguments])}; status=$?; {then or ':'}; exit $status"
    )
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(params=["verify", "kernels"])
def verb(request, recorded, traced, log, ncu, tmp_path):
    """A verb that runs ncu, a run file that it can add to, and ncu's stand-in."""
    record = {"verify": replace(recorded, crosscheck=None), "kernels": traced}[request.param]
    path = record.save(tmp_path / "run" / "run.json")
    body = f"""
    pathlib.Path("{tmp_path}/asked").touch()
    shutil.copy({{"kernel": "{log}", "app-range": real}}[mode], log)
    """
    return request.param, path, ncu(body)


# -- Logs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "why"),
    [({"full": True}, FULL), ({"read_only": True}, "Read-only file system")],
    ids=["full", "read-only"],
)
def test_logs_without_a_place_are_refused_before_ncu_runs(verb, kind, why, tmp_path):
    name, path, stand_in = verb
    before = path.read_bytes()
    kept = tmp_path / "kept"
    options = [str(path), "--ncu", stand_in, "--logs", str(kept), "--", "true"]
    code, _, said = run(tmpfs(kept, **kind), name, *options)
    assert code == 1
    assert said == (
        f"roofprobe: error: ncu needs a folder for its logs, and --logs {kept} cannot be written "
        f"to ({why}): free some space, or name a folder elsewhere with --logs DIR or in TMPDIR\n"
    )
    assert not (tmp_path / "asked").exists()
    assert path.read_bytes() == before


def test_no_temporary_folder_for_logs_is_one_sentence(verb, tmp_path):
    name, path, stand_in = verb
    code = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    from roofprobe.cli import main
    from roofprobe.cli import ncu_options
    ncu_options.require_place = lambda path: None  # the run file's folder is full as well
    sys.exit(main(sys.argv[1:]))
    """
    status, _, said = run(":", name, str(path), "--ncu", stand_in, "--", "true", code=code)
    assert status == 1
    assert said.startswith(
        "roofprobe: error: ncu needs a folder for its logs, and there is no room for them (No "
        "usable temporary directory found in ["
    )
    assert said.count("\n") == 1


def test_a_log_that_a_full_disk_cut_short_is_not_used(recorded, ncu, logs, tmp_path):
    """Even where ncu does not notice: what is left of a log may look whole."""
    path = replace(recorded, crosscheck=None).save(tmp_path / "run.json")
    kept = tmp_path / "kept"
    body = """
    try:
        shutil.copy(real, log)  # 91 kB, and then 4 kB
    except OSError:
        pass
    """
    assert (logs / "kernel-replay.csv").stat().st_size > 65536
    options = [str(path), "--ncu", ncu(body), "--logs", str(kept), "--", "true"]
    code, printed, said = run(tmpfs(kept), "verify", *options)
    assert (code, said) == (3, "")
    rows = Measurement.load(path).crosscheck.counters
    assert all(row.other is None for row in rows)
    (why,) = {row.reason.split("; ")[0] for row in rows if row.mode == "kernel replay"}
    assert why == (
        f"the disk became full ({kept}: {FULL}), so that ncu's log may be cut short and is not used"
    )
    assert "ncu, kernel replay, failed: the disk became full" in printed


# -- Run files ----------------------------------------------------------------------------


def test_a_run_file_in_a_read_only_folder_is_refused_before_ncu_runs(verb, tmp_path):
    name, path, stand_in = verb
    options = [str(path), "--ncu", stand_in, "--", "true"]
    code, _, said = run(tmpfs(path.parent, size="1m", read_only=True), name, *options)
    assert code == 1
    assert said == (
        f"roofprobe: error: nothing can be added to {path}, because its folder cannot be written "
        "to (Read-only file system): copy the file to one that can, and name the copy\n"
    )
    assert not (tmp_path / "asked").exists()


def test_a_full_disk_costs_the_addition_and_not_the_table(verb, tmp_path):
    name, path, stand_in = verb
    before = path.read_bytes()
    code, printed, said = run(
        tmpfs(path.parent, size="1m", full=True),
        *(name, str(path), "--ncu", stand_in, "--", "true"),
        then=f"ls -A {path.parent}; cmp {path} {path.parent}.before/run.json && echo as before",
    )
    assert code == 1
    assert said == f"roofprobe: error: could not write {path}: {FULL}\n"
    assert {"verify": "sass ffma", "kernels": "sm80_xmma"}[name] in printed
    assert printed.splitlines()[-3:] == ["filler", "run.json", "as before"]
    assert path.read_bytes() == before


def test_progress_that_cannot_be_written_costs_no_run_under_ncu(verb, tmp_path):
    name, path, stand_in = verb
    command = [sys.executable, "-m", "roofprobe", name, str(path), "--ncu", stand_in, "--", "true"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    assert done.returncode == {"verify": 3, "kernels": 0}[name]
    first = f"roofprobe: standard output cannot be written to ({FULL}); the rest is here\n=> ncu"
    assert done.stderr.startswith(first)
    assert done.stderr.endswith(f"added to {path}\n")
    kept = Measurement.load(path)
    if name == "verify":
        assert kept.crosscheck is not None
    else:
        assert kept.regions.counted is not None


# -- Checkpoints --------------------------------------------------------------------------

EPOCHS = """
import sys
from roofprobe import ceilings, imagenet, train
ceilings.measure_cpu_roofs = lambda: ()
imagenet.TRAIN_IMAGES, imagenet.VAL_IMAGES = 12, 2  # 6 steps an epoch; measuring takes 4
sys.exit(train.main(sys.argv[1:]))
"""


def test_a_full_disk_costs_the_checkpoint_and_neither_the_table_nor_the_one_before(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("checkpoint.pth.tar", "model_best.pth.tar"):
        (out / name).write_text("of the epoch before")
    model = ["-a", "squeezenet1_1", "-b", "2", "-j", "0", "--lr", "0.001", "--epochs", "3"]
    code, printed, said = run(
        tmpfs(out, size="4m"),  # the weights and their momentum have 10 MB
        *("--dummy", *model, "--steps", "0", "--backend", "analytic", "--out", str(out)),
        code=EPOCHS,
        then=f"ls -A {out}; cat {out}/*.tar",
    )
    why = f"could not write {out}/checkpoint.pth.tar: {FULL}"
    assert (code, said) == (1, f"roofprobe.train: error: {why}\n")
    before, table = printed.split(f"=> no checkpoint, so the run ends here: {why}\n")
    assert "Epoch [0][0/6]" in before
    assert "Epoch [1]" not in printed
    assert "FLOP" in table
    *_, run_file, picture, a, b, c, d, text = table.splitlines()
    assert (run_file, picture) == (str(out / "run.json"), str(out / "roofline.png"))
    assert [a, b, c, d] == ["checkpoint.pth.tar", "model_best.pth.tar", "roofline.png", "run.json"]
    assert text == 2 * "of the epoch before"


# -- Others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "why"),
    [({"full": True}, FULL), ({"read_only": True}, "Read-only file system")],
    ids=["full", "read-only"],
)
def test_ceilings_that_cannot_be_kept_are_printed(kind, why, tmp_path):
    code = f"""
    import json, os, sys
    from pathlib import Path
    from roofprobe.ceilings import cache
    from roofprobe.cli import ceilings, main
    kept = Path({str(ROOT / "harness/results/h200/ceilings.json")!r})
    body = json.loads(kept.read_text())
    os.environ["XDG_CACHE_HOME"] = {str(tmp_path / "cache")!r}
    cache.conditions_of = lambda environment: body["conditions"]
    ceilings._measure = lambda where: cache._from_json(body["ceilings"], kept)
    sys.exit(main(["ceilings"]))
    """
    status, printed, said = run(tmpfs(tmp_path / "cache", **kind), code=code)
    assert status == 0
    assert said.startswith("warning: the result is not kept: could not write ")
    assert said.endswith(f": {why}\n")
    assert said.count("\n") == 1
    assert "DRAM copy" in printed


def test_ceilings_into_a_full_disk_are_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", CEILINGS], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == f"roofprobe: error: cannot write the output: {FULL}\n"


CEILINGS = """
import sys
from roofprobe.ceilings.roofs import Ceilings
from roofprobe.cli import ceilings, main
from roofprobe.record import MeasuredRoof
roof = MeasuredRoof("CPU memory copy", "byte", 1e10, 0.0, "copy_", None, "dram")
ceilings._measure = lambda where: Ceilings((roof,))
sys.exit(main(["ceilings"]))
"""


def read_only(*folders: str) -> str:
    return "; ".join(
        f"mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}" for folder in folders
    )


def test_the_doctor_reports_from_a_read_only_container():
    """Its memory (/dev/shm) can still be written to."""
    prepare = read_only("/tmp", "/var/tmp") + "; cd /proc"
    code, printed, said = run(prepare, "doctor", "--no-self-test")
    assert code in (0, 1)
    assert "Traceback" not in said
    assert "PyTorch " in printed


def test_the_doctor_without_any_folder_is_one_sentence():
    prepare = read_only("/tmp", "/var/tmp", "/dev/shm") + "; cd /proc"
    code, printed, said = run(prepare, "doctor", "--no-self-test")
    assert (code, printed) == (1, "")
    assert said.startswith(
        "roofprobe: error: the checks leave their answers in a small file, and there is no place "
        "for it: No usable temporary directory found in ["
    )
    assert said.endswith(
        "/dev/shm: Read-only file system; free some space, or name a folder that can be written "
        "to in TMPDIR\n"
    )
    assert said.count("\n") == 1

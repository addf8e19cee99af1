"""Signals to the verbs of ``roofprobe``, and to the programs that verbs have started."""

# ruff: noqa: F401, F811 (fixtures of other modules)

import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_kernels import traced
from test_verify import FADD, logs, ncu, recorded, run_verb

from roofprobe import ncu_run
from roofprobe.cli import main, signals
from roofprobe.record import Measurement

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests/data/runs/resnet18-b256/run.json"
COUNTERS = ROOT / "tests/data/resnet18-b256-fp32.counters"
STAYS = "did not get to its end; what was written stays"


def program(code: str) -> list[str]:
    # From Python 3.12 on, a fork beside threads is warned about.
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run(program(code), check=False, **options)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # its new parent may never look


def wait_until(what: Callable[[], bool], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.05)
    return what()


# -- One sentence -------------------------------------------------------------------------

# Sends a signal to itself when a module is imported: a moment that comes in every run.
IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
from roofprobe.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["metrics"], "roofprobe.cli.metrics"),
        (["compare", RUN, RUN], "roofprobe.record"),
        (["evaluate", COUNTERS], "roofprobe.counters.recorded"),
        (["import-ncu", RUN, "--plot", "p.png"], "matplotlib.figure"),
        (["plot", RUN], "numpy"),
        (["report", RUN], "plotly"),
        (["ceilings"], "torch.nn"),
        (["verify", RUN, "--", "true"], "rich.table"),
        (["kernels", RUN, "--", "true"], "rich.console"),
        (["doctor"], "roofprobe.doctor.findings"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_ctrl_c_in_every_verb_is_one_sentence(arguments, module, tmp_path):
    arguments = [str(argument) for argument in arguments]
    code = IMPORTING.format(module=module, number=int(signal.SIGINT), arguments=arguments)
    ended = run(code, cwd=tmp_path)
    assert ended.stderr == f"roofprobe: interrupted: roofprobe {arguments[0]} {STAYS}\n"
    assert (ended.returncode, ended.stdout) == (130, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_named(number):
    ended = run(IMPORTING.format(module="numpy", number=int(number), arguments=["plot", str(RUN)]))
    assert ended.stderr == f"roofprobe: ended by {number.name}: roofprobe plot {STAYS}\n"
    assert ended.returncode == 128 + number


def test_the_exit_code_survives_code_that_was_made_from_text():
    """Python takes 130 for a KeyboardInterrupt that passed through ``exec``, as in a dataclass."""
    ended = run(
        """
        import sys
        from roofprobe.cli import main, metrics
        metrics.run = lambda arguments: exec("import os; os.kill(os.getpid(), 15)")
        sys.exit(main(["metrics"]))
        """
    )
    assert ended.returncode == 143


def test_an_interruption_in_another_exceptions_clothes(monkeypatch, capsys):
    def run_verb(arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            raise ImportError("numpy._core failed to import") from None
        return 0

    monkeypatch.setattr("roofprobe.cli.metrics.run", run_verb)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["metrics"]) == 143
    assert capsys.readouterr().err == f"roofprobe: ended by SIGTERM: roofprobe metrics {STAYS}\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_does_not_break_off_the_cleaning_up(monkeypatch):
    with signals.Signals() as taken:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert taken.came == signal.SIGHUP
        # Later, somebody means it.
        monkeypatch.setattr(signals, "_BURST", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert taken.came == signal.SIGHUP


def test_what_is_ignored_stays_ignored():
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with signals.Signals() as taken:
            for number in before:
                os.kill(os.getpid(), number)
        assert taken.came is None
        assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_thread_may_run_a_verb(capsys):
    found = []
    thread = threading.Thread(target=lambda: found.append(main(["compare", str(RUN), str(RUN)])))
    thread.start()
    thread.join()
    assert found == [0]


@pytest.mark.filterwarnings("ignore:.*use of forkpty:DeprecationWarning")
def test_a_closed_terminal_ends_a_verb_with_129():
    code = """
    import signal, sys
    from roofprobe.cli import main, metrics
    def run(arguments):
        print("close", flush=True)
        signal.pause()
    metrics.run = run
    sys.exit(main(["metrics"]))
    """
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, program(code))
    printed = b""
    while b"close" not in printed:
        printed += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129


# -- What a verb has started --------------------------------------------------------------

# Stands for ncu and the program under it, which is torchrun: its processes have sessions of their
# own. They write their numbers; ``{deaf}`` says what the last does about SIGTERM.
TREE = """
    def note():
        with open("{mark}", "a") as out:
            print(os.getpid(), file=out)
    note()
    if os.fork() == 0:
        note()
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.{deaf})
            note()
    time.sleep(600)
"""


@pytest.fixture
def started(tmp_path):
    """Starts a verb; waits until it has started three processes, and gives both."""
    mark = tmp_path / "pids"
    running = []

    def start(command: list[str]) -> tuple[subprocess.Popen[str], list[int]]:
        verb = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        running.append(verb)
        assert wait_until(lambda: mark.exists() and mark.read_text().count("\n") == 3)
        return verb, [int(pid) for pid in mark.read_text().split()]

    yield start
    for verb in running:
        verb.kill()
        verb.communicate()
    for pid in mark.read_text().split():
        if not gone(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("verb", ["verify", "kernels"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_ncu_and_all_that_it_started(
    verb, number, recorded, traced, ncu, tmp_path, started
):
    path = replace(traced, crosscheck=None).save(tmp_path / "run.json")
    before = path.read_bytes()
    stand_in = ncu(TREE.format(mark=tmp_path / "pids", deaf="SIG_DFL"))
    python = [sys.executable, "-m", "roofprobe"]
    process, pids = started([*python, verb, str(path), "--ncu", stand_in, "--", "true"])
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert said == f"roofprobe: {how}: roofprobe {verb} {STAYS}\n"
    assert all(gone(pid) for pid in pids)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".run.json*"))


def test_what_does_not_end_when_asked_is_killed(recorded, ncu, tmp_path, started):
    path = replace(recorded, crosscheck=None).save(tmp_path / "run.json")
    stand_in = ncu(TREE.format(mark=tmp_path / "pids", deaf="SIG_IGN"))
    code = f"""
    import sys
    from roofprobe import ncu_run
    from roofprobe.cli import main
    ncu_run._PATIENCE = 1.0
    sys.exit(main(["verify", {str(path)!r}, "--ncu", {stand_in!r}, "--", "true"]))
    """
    process, pids = started(program(code))
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert all(gone(pid) for pid in pids)


def test_a_second_ctrl_c_kills_at_once(recorded, ncu, tmp_path, started):
    path = replace(recorded, crosscheck=None).save(tmp_path / "run.json")
    stand_in = ncu(TREE.format(mark=tmp_path / "pids", deaf="SIG_IGN"))
    code = f"""
    import sys
    from roofprobe import ncu_run
    from roofprobe.cli import main
    ncu_run._PATIENCE = 600.0
    sys.exit(main(["verify", {str(path)!r}, "--ncu", {stand_in!r}, "--", "true"]))
    """
    process, pids = started(program(code))
    process.send_signal(signal.SIGINT)
    assert wait_until(lambda: gone(pids[0]))
    time.sleep(signals._BURST + 0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert all(gone(pid) for pid in pids)


def test_a_wrapper_that_never_says_its_version_leaves_nothing_behind(tmp_path, monkeypatch):
    mark = tmp_path / "pid"
    wrapper = tmp_path / "ncu"
    wrapper.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {mark}\nwait\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(ncu_run, "_ANSWER_LIMIT", 1.0)
    with pytest.raises(ncu_run.UsageError, match="does not run"):
        ncu_run.find_ncu(str(wrapper))
    assert gone(int(mark.read_text()))


def test_a_signal_while_a_program_starts_leaves_none_behind(monkeypatch):
    made = []
    real = subprocess.Popen

    def popen(*arguments: object, **options: object) -> object:
        made.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)  # its number is not known to the caller yet
        return made[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with (
        signals.Signals(),
        pytest.raises(KeyboardInterrupt),
        ncu_run._started(["sleep", "600"]),
    ):
        pass
    assert gone(made[0].pid)
    made[0].wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_doctors_child(number, tmp_path, started):
    body = textwrap.dedent(TREE.format(mark=tmp_path / "pids", deaf="SIG_DFL"))
    # The doctor's child starts no sessions.
    body = body.replace("os.setsid()", "pass")
    (tmp_path / "hanging.py").write_text(f"import os, signal, time\n{body}")
    code = """
    import sys
    from roofprobe.cli import main
    from roofprobe.doctor import child
    child.__name__ = "hanging"
    sys.exit(main(["doctor"]))
    """
    process, pids = started(program(code))
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said.splitlines() == [
        "=> asking the driver, PyTorch and CUPTI",
        f"roofprobe: ended by {number.name}: roofprobe doctor {STAYS}",
    ]
    assert wait_until(lambda: all(gone(pid) for pid in pids), 5)


# -- What had been counted ----------------------------------------------------------------

SECOND = "shutil.copy(real, log)\nif mode == 'app-range':\n    os.kill(os.getppid(), {})\n    {}"


def test_what_ncu_had_counted_is_kept(recorded, ncu, tmp_path, capsys):
    path = tmp_path / "run.json"
    body = SECOND.format("signal.SIGINT", "time.sleep(600)")
    assert run_verb(recorded, path, ncu(body)) == 130
    rows = Measurement.load(path).crosscheck.counters
    first = [row for row in rows if row.mode == "kernel replay"]
    late = [row for row in rows if row.mode == "application-range replay"]
    assert (len(first), len(late)) == (15, 4)
    assert [row.metric for row in first if not row.agrees] == [FADD]  # as in the whole comparison
    assert all(row.other is None and row.agrees is False for row in late)
    assert {row.reason for row in late} == {"ncu was interrupted"}
    printed = capsys.readouterr()
    assert printed.out.endswith(f"added to {path}\n")
    assert printed.err == f"roofprobe: interrupted: roofprobe verify {STAYS}\n"


def test_an_earlier_whole_comparison_is_not_replaced_by_half_a_one(recorded, ncu, tmp_path):
    path = recorded.save(tmp_path / "run.json")
    before = path.read_bytes()
    stand_in = ncu(SECOND.format("signal.SIGTERM", "time.sleep(600)"))
    assert main(["verify", str(path), "--ncu", stand_in, "--", "true"]) == 143
    assert path.read_bytes() == before


def test_an_interruption_before_anything_was_counted_adds_nothing(recorded, ncu, tmp_path):
    path = tmp_path / "run.json"
    stand_in = ncu("os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)")
    assert run_verb(recorded, path, stand_in) == 130
    assert Measurement.load(path).crosscheck is None

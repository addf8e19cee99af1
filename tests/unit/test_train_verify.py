"""``train --verify-ncu``: one run here, on this CPU, and those under a stand-in for ncu.

The counters of the run here are those that an H200 recorded; ncu's logs are real ones too.
"""
# ruff: noqa: F811

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_verify import logs, ncu, recorded  # noqa: F401

import roofprobe
from roofprobe import Measurement, ceilings, imagenet, ncu_run, report, train
from roofprobe.counters import Plan, RoundCounters
from roofprobe.errors import UsageError
from roofprobe.ncu_import import import_files

ARGUMENTS = ["-a", "alexnet", "-b", "2", "--dummy", "--verify-ncu"]
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
STORES = (
    "smsp__sass_inst_executed_op_global_st.sum",
    "smsp__inst_executed_op_generic_st_pred_on_any.sum",
    "smsp__inst_executed_op_global_st_pred_on_any.sum",
)
# The stand-in notes what it is given, and what the run file then is.
NOTES = """
    import json
    out = sys.argv[sys.argv.index("--out") + 1]
    with open("{seen}", "a") as file:
        run = json.loads(pathlib.Path(out, "run.json").read_text())
        print(json.dumps([run, sys.argv[sys.argv.index("--metrics") + 2 :]]), file=file)
"""


class Played:
    """Plays back the counters of a recorded run (see ``CounterBackend``)."""

    source = "cupti"
    chip = "GH100"

    def __init__(self, record: Measurement) -> None:
        counters = dict(record.rounds[0].counters)
        # No kernels are recorded here, which would explain the stores of the driver's own copies.
        counters[STORES[0]] = counters[STORES[1]] + counters[STORES[2]]
        self.counters = counters

    def prepare(self, metrics):
        return Plan(tuple(self.counters), 1)

    def open(self):
        pass

    def begin_pass(self):
        pass

    def end_pass(self):
        return True

    def collect(self):
        return RoundCounters(self.counters, {})

    def close(self):
        pass


class OneLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, imagenet.CLASSES)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))


@pytest.fixture
def backend(recorded) -> Played:
    return Played(recorded)


@pytest.fixture
def gpu(monkeypatch, backend):
    """This CPU passes for a GPU with counters."""
    measure, options = roofprobe.measure, train._options

    @contextmanager
    def played(*args, **kwargs):
        with measure(*args, **{**kwargs, "backend": backend}) as probe:
            yield probe

    def allowed(args, *rest):
        return options(argparse.Namespace(**{**vars(args), "verify_ncu": False}), *rest)

    monkeypatch.setattr(roofprobe, "measure", played)
    monkeypatch.setattr(train, "_options", allowed)
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: OneLayer())
    monkeypatch.setattr(report, "save_plot", lambda record, path: path)
    monkeypatch.setattr(ceilings, "measure_cpu_roofs", lambda: ())


def runs_of(seen: Path) -> list[tuple[dict, list[str]]]:
    return [tuple(json.loads(line)) for line in seen.read_text().splitlines()]


@pytest.mark.usefixtures("gpu")
def test_the_same_command_runs_under_ncu_once_the_run_is_saved(ncu, tmp_path, monkeypatch, capsys):
    seen, out = tmp_path / "seen", tmp_path / "out"
    path = ncu(NOTES.format(seen=seen) + "    shutil.copy(real, log)\n")
    monkeypatch.setenv("PATH", str(Path(path).parent))
    # The recorded fadd is of a loss that was NaN: not ncu's.
    assert train.main([*ARGUMENTS, "--out", str(out)]) == 3
    same = ["-a", "alexnet", "-b", "2", "--dummy", "--out", str(out)]
    command = [sys.executable, "-m", "roofprobe.train", "--out", str(out), "--seed", "0", *same]
    for run, argv in runs_of(seen):
        assert argv == command
        assert (run["name"], run["complete"], len(run["rounds"])) == ("alexnet batch 2", True, 1)
        assert run["crosscheck"] is None
        assert run["workload"]["seed"] == 0
    assert len(runs_of(seen)) == 2
    record = Measurement.load(out / "run.json")
    assert record.crosscheck.command == tuple(command)
    (row,) = [row for row in record.crosscheck.counters if row.agrees is False]
    assert (row.metric, row.reason) == (FADD, None)  # both runs have the same seed
    assert "=> --verify-ncu: seed 0 for this run and for those under ncu" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_agreement_is_exit_code_0_and_a_given_seed_stays(
    ncu, tmp_path, monkeypatch, backend, logs, capsys
):
    counted = import_files([logs / "kernel-replay.csv"]).counters[FADD]
    backend.counters = {**backend.counters, FADD: counted}
    seen, out = tmp_path / "seen", tmp_path / "out"
    path = ncu(NOTES.format(seen=seen) + "    shutil.copy(real, log)\n")
    monkeypatch.setenv("PATH", str(Path(path).parent))
    monkeypatch.chdir(tmp_path)
    assert train.main([*ARGUMENTS[:-1], "--verify", "--seed", "7"]) == 0
    (folder,) = Path("runs").iterdir()
    same = ["-a", "alexnet", "-b", "2", "--dummy", "--seed", "7"]
    for run, argv in runs_of(seen):
        assert argv == [sys.executable, "-m", "roofprobe.train", "--out", str(folder), *same]
        assert run["workload"]["seed"] == 7
    assert "=> --verify-ncu: seed" not in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.usefixtures("gpu")
def test_without_ncu_the_run_is_kept_and_the_advice_can_be_followed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu_run, "_candidates", lambda given: ["ncu"])
    out = tmp_path / "out"
    assert train.main([*ARGUMENTS, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "ncu is not on PATH" in error
    assert f"roofprobe verify {out}/run.json --ncu PATH -- {sys.executable} -m " in error
    assert len(Measurement.load(out / "run.json").rounds) == 1


@pytest.mark.usefixtures("gpu")
def test_a_run_that_fell_back_is_kept_and_not_compared(tmp_path, monkeypatch, backend, capsys):
    monkeypatch.setattr(ncu_run, "_candidates", lambda given: [])
    backend.source = "gpm"
    out = tmp_path / "out"
    assert train.main([*ARGUMENTS, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "its source is gpm" in error
    assert "--ncu" not in error
    assert (out / "run.json").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--backend", "gpm"], "compares hardware counters, and --backend gpm reads none"),
        (
            ["--backend", "analytic"],
            "compares hardware counters, and --backend analytic reads none",
        ),
        (["--evaluate"], "compares hardware counters, and --evaluate reads none"),
    ],
)
def test_what_has_no_counters_is_refused_at_parsing(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        train._parse([*ARGUMENTS, *options])


def test_a_cpu_is_refused(tmp_path, capsys):
    assert train.main([*ARGUMENTS, "--out", str(tmp_path / "out")]) == 2
    assert "--verify-ncu needs an NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_torchrun_is_refused_with_the_command_to_use(tmp_path, monkeypatch, capsys):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert train.main([*ARGUMENTS, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "no process under torchrun can" in error
    assert "roofprobe verify RUN.json -- torchrun" in error


def test_other_runs_keep_their_seed():
    assert train._parse(["--dummy"]).seed is None
    assert train._parse(["--dummy", "--verify-ncu"]).seed == 0
    assert train._parse(["--dummy", "--verify-ncu", "--seed", "3"]).seed == 3


def test_two_dashes_stay():
    assert train._without_verify(["--verify", "-b", "2", "--", "DIR"]) == ["-b", "2", "--", "DIR"]


def test_a_measurement_that_left_nothing_is_an_error():
    args = argparse.Namespace(seed=0, seed_chosen=True)
    with pytest.raises(roofprobe.RoofprobeError, match="nothing was measured"):
        train._verify(None, args, ARGUMENTS)


def test_the_recorded_additions_are_not_ncus(recorded, logs):
    """What the exit codes above rest on."""
    counted = import_files([logs / "kernel-replay.csv"]).counters[FADD]
    assert recorded.value(FADD) > 1.03 * counted
    assert replace(recorded, crosscheck=None).source == "cupti"

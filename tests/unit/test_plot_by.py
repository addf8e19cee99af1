"""``roofprobe plot --by``: parts of one run in a picture."""

from dataclasses import replace

import pytest
from test_parts import CONV, NORM, REST, record

from roofprobe.cli import main
from roofprobe.report import layered_roofline, save_layered_plot


@pytest.fixture
def drawn(monkeypatch):
    """Rooflines that went into pictures."""
    from roofprobe import plot

    found, save = [], plot.save_roofline
    monkeypatch.setattr(
        plot, "save_roofline", lambda roofline, path: (found.append(roofline), save(roofline, path))
    )
    return found


def saved(tmp_path, run, name="run.json"):
    run.save(tmp_path / name)
    return str(tmp_path / name)


def test_parts_of_a_run_are_drawn(tmp_path, capsys):
    picture = tmp_path / "p.svg"
    assert main(["plot", saved(tmp_path, record()), "--by", "layer", "--out", str(picture)]) == 0
    assert capsys.readouterr().out == (f"not in the picture: 2 parts: 0 FLOP\npicture: {picture}\n")
    save_layered_plot(record(), tmp_path / "same.svg")
    assert picture.read_bytes() == (tmp_path / "same.svg").read_bytes()


def test_layers_are_summed_to_phases_and_ceilings_can_be_chosen(tmp_path, drawn):
    norm = replace(NORM, range="forward")
    run = saved(tmp_path, record(replace(CONV, range="forward"), norm, REST))
    out = str(tmp_path / "p.png")
    assert main(["plot", run, "--by", "phase", "--ceilings", "datasheet", "--out", out]) == 0
    (roofline,) = drawn
    (forward,) = roofline.points
    # 2 TFLOP over 4 + 20 GB, in 6.25 + 8 ms
    assert forward.name == "forward"
    assert forward.intensity == pytest.approx(2e12 / 24e9)
    assert forward.flop_per_s == pytest.approx(2e12 / 14.25e-3)
    assert {ceiling.source for ceiling in roofline.ceilings} == {"datasheet"}
    assert roofline.left_out == (("optimizer", "0 FLOP"),)
    assert roofline.title.endswith(": by phase")
    assert layered_roofline(record(CONV)).points[0].name == "net.conv forward"


@pytest.mark.parametrize(
    ("run", "options", "why"),
    [
        (record(by="phase"), ["--by", "layer"], "was counted by phase, which tells no layers"),
        (replace(record(), regions=None), ["--by", "layer"], "was not counted by part"),
        (record(), ["--by", "layer", "--level", "l2"], "at the bytes of DRAM"),
    ],
)
def test_what_cannot_be_drawn_by_part_is_said(tmp_path, capsys, run, options, why):
    out = tmp_path / "p.png"
    command = ["plot", saved(tmp_path, run), *options, "--out", str(out)]
    assert main(command) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_parts_are_of_one_run(tmp_path, capsys):
    run = saved(tmp_path, record())
    assert main(["plot", run, run, "--by", "layer", "--out", str(tmp_path / "p.png")]) == 2
    assert "cannot draw 2 runs by layer: parts are drawn of one run" in capsys.readouterr().err

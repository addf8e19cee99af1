"""The report's page in headless Chromium, with no network: what is drawn, picked and hovered."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from roofprobe.page import save
from roofprobe.record import MeasuredRoof, Measurement

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or sync_playwright is None, reason="needs Chromium and Playwright"
)

OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
RESULTS = Path(__file__).parents[1] / "data/runs"
# Of torch on an H200: GEMMs of 8192^3, copies of 8 GiB. L2's is made up.
ROOFS = (
    MeasuredRoof("TF32 GEMM", "flop", 398e12, 0.01, "8192^3", "tensor_tf32", None),
    MeasuredRoof("FP32 GEMM", "flop", 50.7e12, 0.01, "8192^3", "sass_fp32", None),
    MeasuredRoof("DRAM copy", "byte", 4.25e12, 0.01, "8 GiB", None, "dram"),
    MeasuredRoof("L2 read", "byte", 7e12, 0.01, "16 MiB", None, "l2"),
)
EVIL = "<b>&lt;%{x}</b><script>hit=1</script> <img src=x onerror=hit=1>"

# Traces of roofs and of points, reduced to what a user sees.
DRAWN = """() => {
  const traces = document.getElementById("roofline").data;
  return {
    roofs: traces.filter((t) => "roof" in t.meta).map((t) => (
      { name: t.name, x: [t.x[0], t.x.at(-1)], y: [t.y[0], t.y.at(-1)], dash: t.line.dash })),
    points: traces.filter((t) => "levels" in t.meta).flatMap((t) => t.meta.levels.map(
      (level, i) => (
      { name: t.name, level, x: t.x[i], y: t.y[i], shown: t.marker.opacity[i], text: t.text[i] }))),
  };
}"""
# Ticks whose names run into the next one's, and axes with fewer than two names.
OVERLAPS = """() => ["x", "y"].map((axis) => {
  const [low, high] = axis === "x" ? ["left", "right"] : ["top", "bottom"];
  const names = [...document.querySelectorAll(`.${axis}tick text`)]
    .map((name) => name.getBoundingClientRect()).sort((a, b) => a[low] - b[low]);
  return names.filter((box, i) => i && names[i - 1][high] > box[low]).length + (names.length < 2);
}).reduce((a, b) => a + b)"""
# Where on the screen something is: the vertex of a roof, or a point of the whole step.
PLACE = """([level, roof]) => {
  const box = document.getElementById("roofline");
  const { xaxis, yaxis } = box._fullLayout;
  const trace = box.data.find((t) => (roof ? t.name === roof : t.meta.levels?.includes(level)));
  const i = roof ? Math.floor(trace.x.length / 2) : trace.meta.levels.indexOf(level);
  const { x, y } = box.getBoundingClientRect();
  return [x + xaxis._offset + xaxis.d2p(trace.x[i]), y + yaxis._offset + yaxis.d2p(trace.y[i])];
}"""


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens the page of runs; afterwards there may be no error, and no request but the page."""
    contexts, requests, errors = [], [], []

    def open_page(*runs, width=1200, scheme="light"):
        path = save(runs, tmp_path / "report.html")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, offline=True, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.goto(path.as_uri())
        page.wait_for_selector("#roofline .main-svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert set(requests) == {(tmp_path / "report.html").as_uri()}
    assert errors == []


@pytest.fixture
def resnet():
    return replace(Measurement.load(RESULTS / "resnet18-b256/run.json"), roofs=ROOFS)


def pick(page, name, value):
    page.locator("label", has=page.locator(f"input[name={name}][value={value}]")).click()
    return page.evaluate(DRAWN)


def hover(page, level="dram", roof=None):
    x, y = page.evaluate(PLACE, [level, roof])
    page.mouse.move(x + 1, y + 1)
    page.wait_for_selector(".hoverlayer .hovertext")
    return page.locator(".hoverlayer").text_content()


def test_everything_is_drawn_and_plotly_knows_every_setting(opened, resnet):
    page = opened(("x", resnet))
    drawn = page.evaluate(DRAWN)
    assert len(drawn["roofs"]) == 8
    assert {roof["dash"] for roof in drawn["roofs"]} == {"solid", "dash"}
    assert [(p["name"], p["level"], p["shown"]) for p in drawn["points"]] == [
        ("all FLOP", "l2", 1),
        ("all FLOP", "l1", 1),
        ("all FLOP", "dram", 1),
        ("study's formula", "dram", 1),
    ]
    assert page.evaluate(
        "() => { const b = document.getElementById('roofline');"
        " return Plotly.validate(b.data, b.layout) ?? null; }"
    ) in (None, [])
    axes = page.evaluate(
        "() => { const l = document.getElementById('roofline').layout;"
        " return [l.xaxis.type, l.yaxis.type, l.xaxis.title.text, l.yaxis.title.text]; }"
    )
    assert axes == ["log", "log", "arithmetic intensity (FLOP/byte)", "attained (FLOP/s)"]


def test_points_stay_where_they_are_when_a_level_is_picked(opened, resnet):
    page = opened(("x", resnet))
    before = page.evaluate(DRAWN)["points"]
    ranges = (
        "() => ['xaxis', 'yaxis'].map((a) => document.getElementById('roofline').layout[a].range)"
    )
    limits = page.evaluate(ranges)
    for level in ("dram", "l2", "l1"):
        points = pick(page, "level", level)["points"]
        assert [(p["x"], p["y"]) for p in points] == [(p["x"], p["y"]) for p in before]
        assert page.evaluate(ranges) == limits
        assert all((p["shown"] == 1) == (p["level"] == level) for p in points)
        assert all(0 < p["shown"] <= 1 for p in points)
        assert [p["text"] != "" for p in points] == [p["level"] == level for p in points]


def test_roofs_meet_at_the_ridge_of_what_is_picked(opened, resnet):
    page = opened(("x", resnet))
    roofs = {r["name"]: r for r in pick(page, "source", "datasheet")["roofs"]}
    assert set(roofs) == {
        "TF32 tensor 494.7 TFLOP/s",
        "FP32 CUDA cores 66.9 TFLOP/s",
        "DRAM 4.8 TB/s",
    }
    ridge = 494.7 / 4.8
    assert roofs["DRAM 4.8 TB/s"]["x"][1] == pytest.approx(ridge)
    assert roofs["DRAM 4.8 TB/s"]["y"][1] == pytest.approx(494.7e12)
    assert roofs["TF32 tensor 494.7 TFLOP/s"]["x"][0] == pytest.approx(ridge)
    drawn = pick(page, "path", "sass_fp32")
    roofs = {r["name"]: r for r in drawn["roofs"]}
    assert set(roofs) == {"FP32 CUDA cores 66.9 TFLOP/s", "DRAM 4.8 TB/s"}
    assert roofs["DRAM 4.8 TB/s"]["x"][1] == pytest.approx(66.9 / 4.8)
    # fp32's own points: 3.937e10 FLOP in 46.98 ms. The step's fade.
    own = {p["level"]: p for p in drawn["points"] if "FP32" in p["name"]}
    assert own["dram"]["y"] == pytest.approx(3.937e10 / 46.98e-3, rel=1e-3)
    assert all(p["shown"] == 1 for p in own.values())
    assert all(p["shown"] < 1 for p in drawn["points"] if p["name"] == "all FLOP")
    keys = page.locator("#key li:visible").all_text_contents()
    assert [key.strip() for key in keys] == [
        "FP32 CUDA cores 66.9 TFLOP/s, datasheet",
        "DRAM 4.8 TB/s, datasheet",
    ]


def test_a_choice_without_a_roof_says_so(opened, resnet):
    page = opened(("x", resnet))
    pick(page, "source", "datasheet")
    pick(page, "level", "l2")
    assert page.locator("#note").text_content() == "No L2 roof of kind datasheet is known."
    pick(page, "source", "measured")
    assert page.locator("#note").text_content() == ""
    bare = opened(("x", replace(resnet, roofs=())))
    assert bare.locator("input[value=measured]").is_disabled()


def test_a_choice_without_a_run_s_point_says_so(opened, resnet):
    plain = Measurement.load(RESULTS / "resnet18-b256-no-tf32/run.json")
    page = opened(("with", resnet), ("without", plain))
    points = pick(page, "path", "tensor_tf32")["points"]
    assert page.locator("#note").text_content() == "No point of without."
    # TF32 tensor work of the first run, at DRAM; the points of both runs are still there, faded.
    assert [(p["name"], p["text"]) for p in points if p["shown"] == 1] == [
        ("with, TF32 tensor only", "1")
    ]
    assert {p["name"] for p in points if p["shown"] < 1} >= {"with", "without"}


def test_a_record_of_nothing_draws_nothing(opened, resnet):
    nothing = replace(resnet, rounds=(), timing=None, roofs=())
    unknown = replace(nothing, environment=replace(resnet.environment, device_name="x", chip=None))
    page = opened(("x", unknown))
    assert page.evaluate(DRAWN) == {"roofs": [], "points": []}
    assert page.locator("#note").text_content() == (
        "No memory roof is known. No compute roof is known. No point to draw."
    )


def test_hover_tells_name_intensity_rate_source_and_uncertainty(opened, resnet):
    page = opened(("x", resnet))
    said = hover(page)
    for words in (
        "all FLOP",
        "intensity: 35.19 FLOP/byte of DRAM",
        "attained: 59.72 TFLOP/s",
        "source: cupti",
        "uncertainty: rate 0.68%",
    ):
        assert words in said
    page.mouse.move(5, 5)
    said = hover(page, roof="TF32 GEMM 398 TFLOP/s")  # in the middle of the line
    assert "source: measured" in said and "8192^3" in said and "1% between repeats" in said


def test_names_are_text_in_the_picture_too(opened, resnet):
    page = opened((EVIL, resnet), ("<b>x", Measurement.load(RESULTS / "alexnet-b256/run.json")))
    assert EVIL.split()[0] in hover(page)
    pick(page, "path", "tensor_tf32")
    assert page.locator("#roofline img, #roofline script").count() == 0
    assert page.evaluate("() => typeof hit") == "undefined"


def test_a_zoom_can_be_undone_and_names_follow(opened, resnet):
    page = opened(("x", resnet))
    names = """() => document.getElementById("roofline").layout.annotations
      .map((a) => [a.text, a.x, a.y])"""
    before = page.evaluate(names)
    assert len(before) == 8
    assert page.evaluate(OVERLAPS) == 0
    page.evaluate("() => Plotly.relayout('roofline', {'xaxis.range': [0, 2.5]})")
    page.wait_for_function(f"(b) => JSON.stringify(({names})()) !== JSON.stringify(b)", arg=before)
    assert page.evaluate(OVERLAPS) == 0
    pick(page, "level", "dram")
    pick(page, "level", "all")
    assert page.evaluate(names) == before


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_fits_its_width(opened, resnet, width):
    page = opened(("x", resnet), width=width)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERLAPS) == 0
    for table in page.locator(".wide").all():
        assert table.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function("() => document.getElementById('roofline').layout.width < 700")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 700


def test_colours_follow_the_scheme(opened, resnet):
    ink = "() => document.getElementById('roofline').layout.font.color"
    page = opened(("x", resnet), scheme="dark")
    dark = page.evaluate(ink)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"(dark) => ({ink})() !== dark", arg=dark)


def test_the_policy_forbids_loading(chromium, tmp_path, resnet):
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.goto(save([("x", resnet)], tmp_path / "report.html").as_uri())
    blocked = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", (e) => done(e.blockedURI));
          new Image().src = "https://example.invalid/x.png";
        })"""
    )
    assert blocked == "https://example.invalid/x.png"
    context.close()

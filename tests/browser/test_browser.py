"""The report's page in headless Chromium, with no network: what is drawn, picked and hovered."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from roofprobe import metrics
from roofprobe.page import save
from roofprobe.record import (
    Kernel,
    KernelUse,
    MeasuredRoof,
    Measurement,
    Regions,
    Round,
    Segment,
    Timing,
)

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
H200 = Path(__file__).parents[2] / "harness/results/h200"
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
OVERLAPS = """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap((plot) =>
  ["x", "y"].map((axis) => {
    const [low, high] = axis === "x" ? ["left", "right"] : ["top", "bottom"];
    const names = [...plot.querySelectorAll(`.${axis}tick text`)]
      .map((name) => name.getBoundingClientRect()).sort((a, b) => a[low] - b[low]);
    const covered = names.filter((box, i) => i && names[i - 1][high] > box[low]);
    return covered.length + (names.length < 2);
  })).reduce((a, b) => a + b)"""
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
    assert len(drawn["roofs"]) == 9
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
        "L1, derived 33.45 TB/s",
    }
    ridge = 494.7 / 4.8
    assert roofs["DRAM 4.8 TB/s"]["x"][1] == pytest.approx(ridge)
    assert roofs["DRAM 4.8 TB/s"]["y"][1] == pytest.approx(494.7e12)
    # Peaks begin at the steepest memory roof: 128 bytes of 132 SMs at 1.98 GHz.
    assert roofs["TF32 tensor 494.7 TFLOP/s"]["x"][0] == pytest.approx(494.7 / 33.454, rel=1e-4)
    drawn = pick(page, "path", "sass_fp32")
    roofs = {r["name"]: r for r in drawn["roofs"]}
    memory = {"DRAM 4.8 TB/s", "L1, derived 33.45 TB/s"}
    assert set(roofs) == {"FP32 CUDA cores 66.9 TFLOP/s", *memory}
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
        "L1, derived 33.45 TB/s, datasheet",
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


def test_no_name_of_a_point_lies_on_an_error_bar(opened, resnet):
    unsteady = replace(resnet, timing=Timing((20e-3, 47e-3, 94e-3), "cuda_events"))
    rounds = tuple(
        Round({n: v for n, v in each.counters.items() if not n.startswith("l")}, 7, 0)
        for each in unsteady.rounds
    )
    one_level = replace(unsteady, metrics=tuple(rounds[0].counters), rounds=rounds)
    page = opened(("three levels", unsteady), ("DRAM alone", one_level))
    covered = """() => {
      const all = (what) => [...document.querySelectorAll(`#roofline .scatterlayer ${what}`)]
        .map((each) => each.getBoundingClientRect());
      const bars = all(".yerror").filter((bar) => bar.height > 20);
      const names = all(".textpoint text").filter((name) => name.width);
      const meet = (a, b) =>
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
      return [bars.length, names.length, names.filter((n) => bars.some((b) => meet(n, b))).length];
    }"""
    assert page.evaluate(covered) == [2, 2, 0]
    pick(page, "level", "all")
    assert page.evaluate(covered) == [4, 4, 0]


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
    assert len(before) == 9
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


def test_names_of_close_roofs_lie_on_either_side_of_them(opened):
    """L1's measured and derived roof are 2% apart, DRAM's two 6%."""
    page = opened(("x", Measurement.load(H200 / "resnet18-layers/run.json")))
    names = page.evaluate(
        """() => {
          const { xaxis, yaxis, annotations } = document.getElementById("roofline")._fullLayout;
          return annotations.filter((name) => name.textangle).map((name) => {
            const turn = (name.textangle * Math.PI) / 180;
            const x = xaxis.l2p(name.x) + name.xshift;
            const y = yaxis.l2p(name.y) - name.yshift;
            return y * Math.cos(turn) - x * Math.sin(turn); // pixels across the roofs
          }).sort((a, b) => a - b);
        }"""
    )
    assert len(names) == 5
    assert all(after - before >= 14 for before, after in pairwise(names)), names


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


# The picture of parts, reduced to what a user sees; numbers by their boxes on the screen.
PARTS = """() => {
  const box = document.querySelector(".picture");
  const parts = box.data.at(-1);
  return {
    x: parts.x, y: parts.y, size: parts.marker.size, colour: parts.marker.color,
    edge: parts.marker.line.color, roofs: box.data.length - 1,
    numbers: [...box.querySelectorAll(".annotation")]
      .filter((each) => /^\\d+$/.test(each.textContent))
      .map((each) => {
        const { left, right, top, bottom } = each.getBoundingClientRect();
        return { text: each.textContent, left, right, top, bottom };
      }),
  };
}"""
PART_PLACE = """(i) => {
  const box = document.querySelector(".picture");
  box.scrollIntoView();
  const { xaxis, yaxis } = box._fullLayout;
  const { x, y } = box.getBoundingClientRect();
  const parts = box.data.at(-1);
  return [x + xaxis._offset + xaxis.d2p(parts.x[i]), y + yaxis._offset + yaxis.d2p(parts.y[i])];
}"""
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"


def counted(tf32, byte):
    """What a GPU counts for so many TF32 FLOP, and bytes of which half are read."""
    halves = {"dram__bytes_read.sum": byte / 2, "dram__bytes_write.sum": byte / 2}
    return {**dict.fromkeys(metrics.metric_set("full", "GH100"), 0.0), TF32: tf32, **halves}


def part(module, seconds, tf32, byte):
    """A module's forward work."""
    return Segment("", module, "forward", 1.0, (counted(tf32, byte),), seconds, 1.0)


@pytest.fixture
def layers(resnet):
    """A step of 50 ms by layer; its roofs are 398 TFLOP/s and 4.25 TB/s."""
    own = (
        part("compute", 10e-3, 3e12, 1e9),  # 7.5 ms of FLOP
        part("memory", 5e-3, 1e12, 20e9),  # 4.7 ms of bytes
        part("<b>idle</b><img src=x onerror=hit=1>", 4e-3, 1e11, 1e8),
        part("fast", 1e-3, 1e12, 1e9),  # a PFLOP/s: twice the roof
        # on one spot, without room for all numbers
        *(part(f"twin{n}", 0.1e-3, 1e9, 0.1e9) for n in range(25)),
    )
    kernels = tuple(
        Kernel(f"void kernel{n}<{'float, ' * n}int>(float*)", (KernelUse(0, 1.0, 1e-4),))
        for n in range(40)
    )
    return replace(
        resnet,
        metrics=tuple(counted(0, 0)),
        rounds=(Round(counted(5.125e12, 24.6e9), 1, 0),),
        unavailable={},
        timing=Timing((50e-3,), "cuda_events"),
        regions=Regions("layer", own, 2, "cupti_activity", kernels),
    )


def test_parts_are_sized_by_time_and_coloured_by_verdict(opened, layers):
    page = opened(("x", layers))
    page.wait_for_selector(".picture .main-svg")
    drawn = page.evaluate(PARTS)
    assert drawn["x"] == pytest.approx([3000, 50, 1000, 1000, *[10] * 25])
    assert drawn["y"] == pytest.approx([300e12, 200e12, 25e12, 1e15, *[10e12] * 25])
    # areas as times: 10, 5, 4, 1 and 0.1 ms, down to what can be seen
    assert [(size / drawn["size"][0]) ** 2 for size in drawn["size"][:4]] == pytest.approx(
        [1, 0.5, 0.4, 0.1]
    )
    assert drawn["size"][4:] == [5] * 25
    # What lies above its roof is not judged, and hollow.
    blue, orange, olive, grey, white = "#0072b2", "#b84f00", "#7d6200", "#8a8a8a", "#ffffff"
    assert drawn["colour"][:4] == [orange, blue, olive, white]
    assert drawn["edge"][:4] == [orange, blue, olive, grey]
    assert drawn["roofs"] == 4  # TF32 and DRAM, measured and of the datasheet
    assert page.evaluate(
        "() => { const b = document.querySelector('.picture');"
        " return Plotly.validate(b.data, b.layout) ?? null; }"
    ) in (None, [])
    key = [item.strip() for item in page.locator(".layered .key li").all_text_contents()]
    assert key[:4] == [
        "memory-bound (1)",
        "compute-bound (1)",
        "latency-bound (26)",
        "not judged (1)",
    ]


def test_hover_tells_what_a_part_is_and_loses(opened, layers):
    page = opened(("x", layers))
    x, y = page.evaluate(PART_PLACE, 1)
    page.mouse.move(x + 1, y + 1)
    page.wait_for_selector(".picture .hoverlayer .hovertext")
    said = page.locator(".picture .hoverlayer").text_content()
    for words in (
        "memory forward",
        "time: 5 ms, 10% of the step",
        "lost against the roof: <= 294 µs",  # 5 ms less 20 GB at 4.25 TB/s
        "verdict: memory-bound, DRAM used to 94%",
        "FLOP: 1 T; DRAM bytes: 20 GB",
        "intensity: 50 FLOP/byte of DRAM",
    ):
        assert words in said
    x, y = page.evaluate(PART_PLACE, 2)
    page.mouse.move(x + 1, y + 1)
    page.wait_for_function(
        "() => document.querySelector('.picture .hoverlayer').textContent.includes('<b>idle</b>')"
    )
    assert page.locator(".picture img").count() == 0
    assert page.evaluate("() => typeof hit") == "undefined"


@pytest.mark.parametrize("width", [1200, 400])
def test_numbers_of_parts_do_not_collide_and_the_parts_fit(opened, layers, width):
    page = opened(("x", layers), width=width)
    page.wait_for_selector(".picture .annotation")
    numbers = page.evaluate(PARTS)["numbers"]
    # Rows: the idle part loses 3.75 ms, the compute-bound one 2.46.
    assert {"1", "2"} <= {number["text"] for number in numbers}
    assert 4 <= len(numbers) <= 10
    for i, one in enumerate(numbers):
        for other in numbers[:i]:
            # text boxes have a pixel or two of air on each side
            apart = max(one["left"], other["left"]) > min(one["right"], other["right"]) - 4
            assert apart or max(one["top"], other["top"]) > min(one["bottom"], other["bottom"]) - 6
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    for table in page.locator(".wide").all():
        assert table.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
    assert page.evaluate(OVERLAPS) == 0


def test_a_zoom_into_parts_places_their_numbers_anew(opened, layers):
    page = opened(("x", layers))
    places = """() => document.querySelector(".picture").layout.annotations
      .map((a) => [a.text, a.xshift, a.yshift, a.y])"""
    before = page.evaluate(places)
    page.evaluate(
        "() => Plotly.relayout(document.querySelector('.picture'), {'xaxis.range': [1.5, 3.6]})"
    )
    page.wait_for_function(f"(b) => JSON.stringify(({places})()) !== JSON.stringify(b)", arg=before)
    shown = {number["text"] for number in page.evaluate(PARTS)["numbers"]}
    assert {"1", "2"} <= shown  # of 1000 and 3000 FLOP/byte
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function("() => document.querySelector('.picture').layout.width < 500")


def test_long_tables_are_folded_until_all_rows_are_asked_for(opened, layers):
    page = opened(("x", layers))
    (parts, kernels) = page.locator("table[data-first]").all()
    buttons = page.locator(".wide button")
    for table, first, total in ((parts, 20, 29), (kernels, 15, 40)):
        assert table.locator("tbody tr:visible").count() == first
        assert table.locator("tbody tr").count() == total
    assert buttons.all_text_contents() == ["show all 29", "show all 40"]
    buttons.first.click()
    assert parts.locator("tbody tr:visible").count() == 29
    assert kernels.locator("tbody tr:visible").count() == 15
    assert buttons.first.get_attribute("aria-expanded") == "true"
    buttons.first.click()
    assert parts.locator("tbody tr:visible").count() == 20
    page.emulate_media(media="print")  # paper has no button
    assert kernels.locator("tbody tr:visible").count() == 40


def test_a_page_without_scripts_shows_all_rows(chromium, tmp_path, layers):
    context = chromium.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(save([("x", layers)], tmp_path / "report.html").as_uri())
    assert page.locator("table[data-first] tbody tr:visible").count() == 29 + 40
    context.close()


def test_each_run_has_its_own_picture_of_parts(opened, resnet, layers):
    page = opened(("one", layers), ("two", resnet), ("three", layers))
    assert page.locator(".picture .main-svg").count() >= 2
    assert page.locator("#run-2 .picture").count() == 0
    ink = "() => [...document.querySelectorAll('.picture')].map((b) => b.layout.font.color)"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(light) => ({ink})().every((c, i) => c !== light[i])", arg=light)

"use strict";
// Draws the rooflines from the data that page/chart.py and page/layered.py made; every number to
// read is in there.
(() => {
  const chart = JSON.parse(document.getElementById("chart").textContent);
  const box = document.getElementById("roofline");
  const form = document.getElementById("choices");
  const note = document.getElementById("note");
  const SYMBOLS = { dram: "circle", l2: "square", l1: "triangle-up" };
  const NAMES = { dram: "DRAM", l2: "L2", l1: "L1" };
  const DASHES = { measured: "solid", datasheet: "dash", given: "dot" };
  const FONT = "system-ui, sans-serif";
  const FADED = 0.22;
  const SAMPLES = 80; // a line can be hovered at its vertices only
  const NAME_HEIGHT = 15; // pixels
  const X_ROOM = 38; // pixels, of a tick's name
  const Y_ROOM = 17;
  const NARROW = 640; // below so many pixels roofs are named in the key alone
  const SMALLEST = 5; // pixels, diameters of parts of a step
  const LARGEST = 34;
  const LARGEST_NARROW = 24;
  const UNSIZED = 8; // where the step's time is not known
  const THROUGH = 0.65; // large ones do not hide small ones
  const DIGIT = 8; // pixels, of a part's number

  // Plotly takes HTML for a few tags in labels; names are text.
  const text = (words) =>
    words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const hover = (lines) => lines.map(text).join("<br>");
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const picked = (name) => new FormData(form).get(name) ?? "all";
  const fits = (choice, value) => choice === "all" || choice === value;

  function shownRoofs(state) {
    return chart.roofs.filter(
      (roof) =>
        fits(state.source, roof.source) &&
        (roof.kind === "byte" ? fits(state.level, roof.level) : fits(state.path, roof.path)),
    );
  }

  // The highest roof that ends this one: of its source, else of its device.
  function other(roof, roofs) {
    const own = roofs.filter((each) => each.device === roof.device && each.kind !== roof.kind);
    const same = own.filter((each) => each.source === roof.source);
    return Math.max(...(same.length ? same : own).map((each) => each.value));
  }

  function roofLine(roof, roofs, range) {
    const limit = other(roof, roofs); // -Infinity without any
    let [low, high] = range;
    if (limit > 0 && roof.kind === "byte") high = limit / roof.value;
    if (limit > 0 && roof.kind === "flop") low = roof.value / limit;
    const x = Array.from(
      { length: SAMPLES },
      (_, i) => low * (high / low) ** (i / (SAMPLES - 1)),
    );
    return { x, y: x.map((at) => (roof.kind === "byte" ? at * roof.value : roof.value)) };
  }

  function roofTrace(roof, roofs, { roofs: all, x }) {
    return {
      ...roofLine(roof, roofs, x),
      name: text(roof.label),
      meta: { roof: all.indexOf(roof) },
      mode: "lines",
      line: { color: colour(`c${roof.colour}`), dash: DASHES[roof.source], width: 2 },
      hoverinfo: "text",
      hovertext: hover(roof.hover),
    };
  }

  // Levels of a step lie side by side, so their names give way to each other, and all to the bars.
  const place = (i, count) =>
    i > 0 && i === count - 1 ? "top right" : i === 0 && count > 1 ? "top left" : "bottom right";
  const isPicked = (mark, state) =>
    fits(state.level, mark.level) && mark.path === (state.path === "all" ? null : state.path);

  // One trace a piece of work: its levels, joined. What is not picked fades and stays.
  function seriesTraces(state) {
    const series = new Map();
    for (const mark of chart.marks) {
      if (mark.path !== null && mark.path !== state.path) continue;
      series.set(mark.series, [...(series.get(mark.series) ?? []), mark]);
    }
    return [...series.values()].map((marks) => {
      marks.sort((a, b) => a.x - b.x);
      const on = marks.map((mark) => isPicked(mark, state));
      const ink = colour("ink");
      const bars = (which, at) => {
        const values = marks.map((mark) => mark[at]);
        const reach = marks.map((mark, i) => (on[i] ? mark.reach[which] : NaN)); // NaN: no bar
        return {
          type: "data", symmetric: false, color: ink, thickness: 1, width: 3,
          array: values.map((value, i) => value * (reach[i] - 1)),
          arrayminus: values.map((value, i) => value * (1 - 1 / reach[i])),
        };
      };
      return {
        x: marks.map((mark) => mark.x),
        y: marks.map((mark) => mark.y),
        name: text(marks[0].series),
        meta: { levels: marks.map((mark) => mark.level), path: marks[0].path },
        mode: "lines+markers+text",
        line: { color: ink, width: on.filter(Boolean).length > 1 ? 1 : 0 },
        marker: {
          size: 11,
          color: marks.map((mark) => (mark.above ? colour("page") : ink)),
          line: { color: ink, width: 2 },
          symbol: marks.map((mark) => SYMBOLS[mark.level]),
          opacity: on.map((is) => (is ? 1 : FADED)),
        },
        error_x: bars(0, "x"),
        error_y: bars(1, "y"),
        text: marks.map((mark, i) => (on[i] ? text(mark.label) : "")),
        textposition: marks.map((_, i) => place(i, marks.length)),
        textfont: { color: ink, size: 13 },
        hoverinfo: "text",
        hovertext: marks.map((mark) => hover(mark.hover)),
        cliponaxis: false,
      };
    });
  }

  // Names of roofs: along the slanted ones where they enter, beside the right end of flat ones.
  function roofNames(roofs, size, ranges) {
    const [[x0, x1], [y0, y1]] = ranges; // powers of ten
    const across = size.width / (x1 - x0); // pixels
    const up = size.height / (y1 - y0);
    const style = (roof) => ({
      text: text(roof.label),
      showarrow: false,
      font: { color: colour(`c${roof.colour}`), size: 12 },
    });
    const turn = Math.atan(up / across);
    const memory = roofs.filter((roof) => roof.kind === "byte");
    const lowest = Math.min(...memory.map((roof) => roof.value));
    const slanted = memory.map((roof) => {
      // A level's two roofs are close: there is room on their outer sides.
      const close = memory.some((other) => {
        const apart = Math.log10(other.value / roof.value) * up * Math.cos(turn); // pixels
        return apart > 0 && apart < NAME_HEIGHT;
      });
      const off = memory.length > 1 && (close || roof.value === lowest) ? -10 : 10;
      const half = 4 * roof.label.length; // pixels
      const x = Math.max(x0, y0 - Math.log10(roof.value)) + (half * Math.cos(turn)) / across;
      return {
        ...style(roof),
        x,
        y: Math.log10(roof.value) + x,
        textangle: (-turn * 180) / Math.PI,
        xshift: -off * Math.sin(turn),
        yshift: off * Math.cos(turn),
      };
    });
    let free = Infinity; // highest place that no name above needs
    const flat = roofs
      .filter((roof) => roof.kind === "flop")
      .sort((a, b) => b.value - a.value)
      .map((roof) => {
        const y = Math.min(Math.log10(roof.value), free);
        free = y - NAME_HEIGHT / up;
        return { ...style(roof), xref: "paper", x: 1, xanchor: "left", y };
      });
    return [...slanted, ...flat];
  }

  // Which ticks are named: powers of ten, 1-2-5 or all, as far as there is room for names.
  function ticks([low, high], pixels, room) {
    const decade = pixels / (high - low);
    if (decade * Math.log10(2) < room) return 1;
    return decade * Math.log10(10 / 9) < room ? "D2" : "D1";
  }

  function inside({ width, height, margin }) {
    return { width: width - margin.l - margin.r, height: height - margin.t - margin.b };
  }

  function layout(box, data) {
    const width = box.clientWidth;
    const narrow = width < NARROW;
    const flat = data.roofs.filter((roof) => roof.kind === "flop");
    const longest = Math.max(0, ...flat.map((roof) => roof.label.length));
    const margin = narrow
      ? { l: 60, r: 8, t: 8, b: 48 }
      : { l: 68, r: Math.min(16 + 7 * longest, width / 3), t: 28, b: 56 };
    const height = narrow ? 400 : 540;
    const size = inside({ width, height, margin });
    const [x, y] = [data.x, data.y].map((range) => range.map(Math.log10));
    const axis = {
      type: "log", gridcolor: colour("line"), linecolor: colour("faint"),
      showline: true, zeroline: false, ticks: "outside", tickcolor: colour("faint"),
      automargin: false,
    };
    return {
      width, height, margin,
      paper_bgcolor: colour("page"),
      plot_bgcolor: colour("page"),
      font: { color: colour("ink"), size: narrow ? 12 : 14, family: FONT },
      modebar: {
        bgcolor: colour("page"), color: colour("faint"), activecolor: colour("ink"),
      },
      hovermode: "closest",
      hoverdistance: 14,
      hoverlabel: {
        align: "left",
        bgcolor: colour("box"),
        bordercolor: colour("faint"),
        font: { size: narrow ? 12 : 13, color: colour("ink"), family: FONT },
      },
      showlegend: false,
      dragmode: narrow ? false : "zoom", // a finger that drags means to scroll
      xaxis: {
        ...axis,
        range: x,
        dtick: ticks(x, size.width, X_ROOM),
        title: { text: "arithmetic intensity (FLOP/byte)", standoff: 8 },
        tickformat: "~g",
      },
      yaxis: {
        ...axis,
        range: y,
        dtick: ticks(y, size.height, Y_ROOM),
        title: { text: "attained (FLOP/s)", standoff: 4 },
        tickformat: "~s",
      },
    };
  }

  // What a choice leaves without a roof or a point, in words.
  function lacking(state, roofs) {
    const kinds = { byte: NAMES[state.level] ?? "memory", flop: "compute" };
    const of = state.source === "all" ? "" : ` of kind ${state.source}`;
    const found = ["byte", "flop"]
      .filter((kind) => !roofs.some((roof) => roof.kind === kind))
      .map((kind) => `No ${kinds[kind]} roof${of} is known.`);
    const there = chart.marks.filter((mark) => isPicked(mark, state));
    const missing = chart.runs.filter((_, i) => !there.some((mark) => mark.label === `${i + 1}`));
    if (missing.length) found.push(`No point of ${missing.join(", ")}.`);
    else if (!there.length) found.push("No point to draw.");
    return found.join(" ");
  }

  // Names lie at angles and distances in pixels, so they are placed anew after each zoom.
  function placeNames(box, roofs, marks = []) {
    const narrow = box.layout.width < NARROW;
    if (narrow && !marks.length) return;
    const size = inside(box.layout);
    const ranges = [box.layout.xaxis.range, box.layout.yaxis.range];
    const names = narrow ? [] : roofNames(roofs, size, ranges);
    Plotly.relayout(box, {
      annotations: [...names, ...partNumbers(marks, size, ranges, narrow)],
      "xaxis.dtick": ticks(ranges[0], size.width, X_ROOM),
      "yaxis.dtick": ticks(ranges[1], size.height, Y_ROOM),
    });
  }

  function react(box, traces, data) {
    Plotly.react(box, traces, layout(box, data), {
      displaylogo: false,
      doubleClick: "reset",
      displayModeBar: box.clientWidth >= NARROW,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { filename: "roofline", scale: 2 },
    });
  }

  // Draws, and draws again when the colours or the width change; a zoom places names anew.
  function keep(box, draw, names) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    draw();
    let drawn = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth !== drawn) {
        drawn = box.clientWidth;
        draw();
      }
    }).observe(box);
    box.on("plotly_relayout", (change) => {
      if (!("annotations" in change)) names();
    });
  }

  function diameter(mark, narrow) {
    const largest = narrow ? LARGEST_NARROW : LARGEST;
    return mark.size === null ? UNSIZED : Math.max(SMALLEST, mark.size * largest);
  }

  // Numbers of parts beside their points, each where it covers neither a number nor such a point.
  function partNumbers(marks, size, ranges, narrow) {
    const [[x0, x1], [y0, y1]] = ranges; // powers of ten
    const spots = marks
      .filter((mark) => mark.label)
      .map((mark) => ({
        mark,
        x: ((Math.log10(mark.x) - x0) / (x1 - x0)) * size.width,
        y: ((Math.log10(mark.y) - y0) / (y1 - y0)) * size.height,
        radius: diameter(mark, narrow) / 2,
      }));
    const taken = []; // boxes: centre, and half of width and height
    const hits = (a, b) => Math.abs(a.x - b.x) < a.w + b.w && Math.abs(a.y - b.y) < a.h + b.h;
    const off = ({ x, y, w, h }) =>
      x < w || y < h || x > size.width - w || y > size.height - h;
    const cores = spots.map(({ x, y, radius }) => ({ x, y, w: radius / 2, h: radius / 2 }));
    return spots.flatMap(({ mark, x, y, radius }) => {
      const w = (mark.label.length * DIGIT) / 2;
      const h = NAME_HEIGHT / 2;
      const places = [[0, 1], [1, 0], [-1, 0], [0, -1], [1, 1], [-1, 1], [1, -1], [-1, -1]];
      for (const [right, up] of places) {
        const far = radius * (right && up ? Math.SQRT1_2 : 1);
        const at = { x: x + right * (far + w + 2), y: y + up * (far + h), w, h };
        if (off(at) || [...taken, ...cores].some((each) => hits(at, each))) continue;
        taken.push(at);
        return {
          text: mark.label,
          showarrow: false,
          font: { color: colour("ink"), size: 13 },
          x: Math.log10(mark.x),
          y: Math.log10(mark.y),
          xshift: at.x - x,
          yshift: at.y - y,
        };
      }
      return [];
    });
  }

  // A point for each part of a step, the largest ones below.
  function partsTrace({ marks }, narrow) {
    const colours = marks.map((mark) => colour(`c${mark.colour}`));
    return {
      x: marks.map((mark) => mark.x),
      y: marks.map((mark) => mark.y),
      name: "parts",
      mode: "markers",
      marker: {
        size: marks.map((mark) => diameter(mark, narrow)),
        color: marks.map((mark, i) => (mark.above ? colour("page") : colours[i])),
        line: { color: colours, width: 1.5 },
        opacity: THROUGH,
      },
      hoverinfo: "text",
      hovertext: marks.map((mark) => hover(mark.hover)),
      cliponaxis: false,
    };
  }

  function drawParts(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const box = figure.querySelector(".picture");
    const names = () => placeNames(box, data.roofs, data.marks);
    const draw = () => {
      const lines = data.roofs.map((roof) => roofTrace(roof, data.roofs, data));
      react(box, [...lines, partsTrace(data, box.clientWidth < NARROW)], data);
      names();
    };
    keep(box, draw, names);
  }

  // Of a long table the first rows, and a button for the others.
  function fold(table) {
    const first = Number(table.dataset.first);
    const rows = [...table.tBodies[0].rows];
    const button = document.createElement("button");
    for (const row of rows.slice(first)) row.classList.add("rest");
    const show = (all) => {
      table.classList.toggle("folded", !all);
      button.setAttribute("aria-expanded", String(all));
      button.textContent = all ? `show the first ${first}` : `show all ${rows.length}`;
    };
    button.type = "button";
    button.addEventListener("click", () => show(table.classList.contains("folded")));
    table.after(button);
    show(false);
  }

  let roofs = [];
  function draw() {
    const state = Object.fromEntries(
      ["level", "path", "source"].map((choice) => [choice, picked(choice)]),
    );
    roofs = shownRoofs(state);
    for (const item of document.querySelectorAll("[data-roof]")) {
      item.hidden = !roofs.includes(chart.roofs[Number(item.dataset.roof)]);
    }
    note.textContent = lacking(state, roofs);
    const lines = roofs.map((roof) => roofTrace(roof, roofs, chart));
    react(box, [...lines, ...seriesTraces(state)], chart);
    placeNames(box, roofs);
  }

  form.addEventListener("change", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  keep(box, draw, () => placeNames(box, roofs));
  document.querySelectorAll(".layered").forEach(drawParts);
  document.querySelectorAll("table[data-first]").forEach(fold);
})();

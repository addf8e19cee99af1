"use strict";
// Draws the roofline from the data that page/chart.py made; every number to read is in there.
(() => {
  const chart = JSON.parse(document.getElementById("chart").textContent);
  const box = document.getElementById("roofline");
  const form = document.getElementById("choices");
  const note = document.getElementById("note");
  const SYMBOLS = { dram: "circle", l2: "square", l1: "triangle-up" };
  const NAMES = { dram: "DRAM", l2: "L2", l1: "L1" };
  const DASHES = { measured: "solid", datasheet: "dash", given: "dot" };
  const FADED = 0.22;
  const SAMPLES = 80; // a line can be hovered at its vertices only
  const NARROW = 640; // below so many pixels roofs are named in the key alone

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

  function roofLine(roof, roofs) {
    const limit = other(roof, roofs); // -Infinity without any
    let [low, high] = chart.x;
    if (limit > 0 && roof.kind === "byte") high = limit / roof.value;
    if (limit > 0 && roof.kind === "flop") low = roof.value / limit;
    const x = Array.from(
      { length: SAMPLES },
      (_, i) => low * (high / low) ** (i / (SAMPLES - 1)),
    );
    return { x, y: x.map((at) => (roof.kind === "byte" ? at * roof.value : roof.value)) };
  }

  function roofTrace(roof, roofs) {
    return {
      ...roofLine(roof, roofs),
      name: text(roof.label),
      meta: { roof: chart.roofs.indexOf(roof) },
      mode: "lines",
      line: { color: colour(`c${roof.colour}`), dash: DASHES[roof.source], width: 2 },
      hoverinfo: "text",
      hovertext: hover(roof.hover),
    };
  }

  // One trace a piece of work: its levels, joined. What is not picked fades and stays.
  function seriesTraces(state) {
    const series = new Map();
    for (const mark of chart.marks) {
      if (mark.path !== null && mark.path !== state.path) continue;
      const key = JSON.stringify([mark.series, mark.label === mark.series ? "" : mark.path]);
      series.set(key, [...(series.get(key) ?? []), mark]);
    }
    return [...series.values()].map((marks) => {
      marks.sort((a, b) => a.x - b.x);
      const on = marks.map(
        (mark) => fits(state.level, mark.level) && (state.path === "all" || mark.path !== null),
      );
      const ink = colour("ink");
      const bars = (which, at) => {
        const values = marks.map((mark) => mark[at]);
        const reach = marks.map((mark, i) => (on[i] ? mark.reach[which] : 1));
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
        textposition: marks.map((_, i) => (i % 2 ? "bottom center" : "top center")),
        textfont: { color: ink, size: 13 },
        hoverinfo: "text",
        hovertext: marks.map((mark) => hover(mark.hover)),
        cliponaxis: false,
      };
    });
  }

  // Names along the roofs: slanted ones from where they enter, flat ones to their right end.
  // Roofs that were measured lie below the datasheet's, and so do their names.
  function roofNames(roofs, size) {
    const [x0, x1, y0, y1] = [...chart.x, ...chart.y].map(Math.log10);
    const slope = ((size.height / (y1 - y0)) * (x1 - x0)) / size.width;
    return roofs.map((roof) => {
      const below = roof.source === "measured";
      const slanted = roof.kind === "byte";
      const enters = Math.max(x0, y0 - Math.log10(roof.value));
      const at = slanted ? enters + 0.02 * (x1 - x0) : x1;
      const turn = slanted ? Math.atan(slope) : 0;
      return {
        x: at,
        y: Math.log10(roof.value) + (slanted ? at : 0),
        text: text(roof.label),
        textangle: (-turn * 180) / Math.PI,
        showarrow: false,
        xanchor: slanted ? "left" : "right",
        yanchor: slanted ? "bottom" : below ? "top" : "bottom",
        font: { color: colour(`c${roof.colour}`), size: 12 },
        borderpad: 1,
      };
    });
  }

  function layout(width, roofs) {
    const narrow = width < NARROW;
    const margin = narrow ? { l: 52, r: 8, t: 8, b: 48 } : { l: 68, r: 16, t: 12, b: 56 };
    const height = narrow ? 400 : 540;
    const size = { width: width - margin.l - margin.r, height: height - margin.t - margin.b };
    const axis = {
      type: "log", dtick: 1, gridcolor: colour("line"), linecolor: colour("faint"),
      showline: true, zeroline: false, ticks: "outside", tickcolor: colour("faint"),
      automargin: false,
    };
    return {
      width, height, margin,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), size: narrow ? 12 : 14, family: "system-ui, sans-serif" },
      hovermode: "closest",
      hoverdistance: 14,
      hoverlabel: { align: "left", font: { size: narrow ? 12 : 13 }, namelength: -1 },
      showlegend: false,
      dragmode: narrow ? false : "zoom", // a finger that drags means to scroll
      xaxis: {
        ...axis,
        range: chart.x.map(Math.log10),
        title: { text: "arithmetic intensity (FLOP/byte)", standoff: 8 },
        exponentformat: "none",
      },
      yaxis: {
        ...axis,
        range: chart.y.map(Math.log10),
        title: { text: "attained (FLOP/s)", standoff: 4 },
        exponentformat: "SI",
      },
      annotations: narrow ? [] : roofNames(roofs, size),
    };
  }

  function draw() {
    const state = Object.fromEntries(["level", "path", "source"].map((name) => [name, picked(name)]));
    const roofs = shownRoofs(state);
    for (const item of document.querySelectorAll("[data-roof]")) {
      item.hidden = !roofs.includes(chart.roofs[Number(item.dataset.roof)]);
    }
    const lacking = ["byte", "flop"].filter((kind) => !roofs.some((roof) => roof.kind === kind));
    const kinds = { byte: NAMES[state.level] ?? "memory", flop: "compute" };
    const of = state.source === "all" ? "" : ` of kind ${state.source}`;
    note.textContent = lacking.map((kind) => `No ${kinds[kind]} roof${of} is known.`).join(" ");
    Plotly.react(
      box,
      [...roofs.map((roof) => roofTrace(roof, roofs)), ...seriesTraces(state)],
      layout(box.clientWidth, roofs),
      {
        displaylogo: false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
        toImageButtonOptions: { filename: "roofline", scale: 2 },
      },
    );
  }

  form.addEventListener("change", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let drawn = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== drawn) {
      drawn = box.clientWidth;
      draw();
    }
  }).observe(box);
})();

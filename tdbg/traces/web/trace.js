// A summary of traces: where a step goes, steps, calls as a flame graph, memory, tables. For the file and the viewer.
// data: what describe_page of tdbg/traces/render/trace_page.py gives. choice: the select of the trace. download: called
// with a trace for its own file, or left out. step: the number of one that is marked among the steps, or left out. Returns {drawGraphs, choose}: the
// one for when plotly comes later, the other shows a trace by its number.
"use strict";
const PART_COLORS = {input: "#e07b39", h2d: "#c9a227", forward: "#5b9bd5", backward: "#2f6db5", optimizer: "#59a14f", communication: "#b07aa1", copy: "#9c755f", idle: "#c8ccd2", other: "#8c9199"};
const CALL_COLORS = {f: "#7fb069", m: "#5b9bd5", o: "#e6a157", s: "#c38fc9", t: "#a9b0b8", "": "#c8ccd2"};
const CALL_NAMES = {f: "line of the program", m: "module", o: "operator", s: "span", t: "thread", "": ""};

function traceNumber(value) {
  if (value === null || value === undefined) return "-";
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

function traceBytes(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(value) < 999.5) return traceNumber(value) + " " + unit;
    value /= 1000;
  }
  return traceNumber(value) + " TB";
}

function buildTraces(root, data, choice, download, step) {
  const at = {verdict: appendElement("p", undefined, root), facts: appendElement("ul", undefined, root)};
  at.verdict.id = "verdict", at.facts.id = "facts";
  [at.bar, at.barNote] = addGraph("bar", "Where a step goes");
  [at.lanes, at.lanesNote] = addGraph("lanes", "Steps");
  [at.flame, at.flameNote, at.flameSection] = addGraph("flame", "Calls", "ways");
  at.ways = at.flameSection.querySelector(".tools");
  at.memorySection = addSection("Memory"), at.memory = appendElement("div", undefined, at.memorySection), at.memory.id = "memory";
  at.tables = appendElement("div", undefined, addSection("Tables")), at.tables.id = "tables";

  function addSection(title) {
    const section = appendElement("section", undefined, root);
    appendElement("h2", title, section);
    return section;
  }

  function addGraph(id, title, tools) {
    const section = addSection(title);
    if (tools) appendElement("div", undefined, section, "tools").id = tools;
    const note = appendElement("p", undefined, section, "note"), graph = appendElement("div", undefined, section, "graph");
    graph.id = id, note.id = id + "-note";
    return [graph, note, section];
  }

  // Plotly may be on its way: until then there is room.
  function drawGraph(place, traces, layout) {
    place.style.minHeight = layout.height + "px";
    if (window.Plotly) Plotly.newPlot(place, traces, chartLayout(layout), CHART_CONFIG);
  }

  function drawBars() {
    const labels = data.lanes.map(lane => escapeMarkup(lane.label));
    const traces = data.parts.filter(part => data.lanes.some(lane => lane.mean_ms[part])).map(part => ({
      type: "bar", orientation: "h", name: part, y: labels, x: data.lanes.map(lane => lane.mean_ms[part] || 0),
      marker: {color: PART_COLORS[part]}, hovertemplate: "%{y}: " + part + " %{x:.4g} ms<extra></extra>",
      text: data.lanes.map(lane => lane.mean_ms[part] > 0.06 * lane.length_ms ? part + " " + Math.round(100 * lane.mean_ms[part] / lane.length_ms) + "%" : ""),
      textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
    }));
    const height = 90 + 34 * labels.length;
    drawGraph(at.bar, traces, {
      barmode: "stack", height, legend: {orientation: "h", y: 1, yanchor: "bottom", traceorder: "normal"}, margin: {l: 10, r: 10, t: 30, b: 40},
      uniformtext: {minsize: 10, mode: "hide"}, xaxis: {title: {text: "ms per step"}}, yaxis: {type: "category", autorange: "reversed"},
    });
    at.barNote.textContent = data.bar_note;
  }

  const isMarked = one => one.number !== null && one.number === step;

  function drawSteps() {
    const labels = data.lanes.map(lane => escapeMarkup(lane.label));
    const traces = data.parts.map(part => {
      const found = {type: "bar", orientation: "h", name: part, x: [], y: [], base: [], customdata: [], marker: {color: PART_COLORS[part]}};
      data.lanes.forEach((lane, row) => {
        for (const step of lane.steps) {
          let start = step.start_ms;
          for (const name of data.parts) {
            const ms = step.parts[name] || 0;
            if (name === part && ms) {
              found.x.push(ms), found.y.push(labels[row]), found.base.push(start);
              found.customdata.push((step.number === null ? "all of it" : "step " + step.number) + ", " + traceNumber(step.length_ms) + " ms");
            }
            start += ms;
          }
        }
      });
      return {...found, hovertemplate: "%{y}, %{customdata}: " + part + " %{x:.4g} ms<extra></extra>"};
    }).filter(found => found.x.length);
    const marks = data.lanes.flatMap((lane, row) => lane.steps.map(step => ({
      type: "line", x0: step.start_ms, x1: step.start_ms, y0: row - 0.46, y1: row + 0.46, line: {color: readColor("front"), width: 1.5},
    })));
    const latest = Math.max(...data.lanes.flatMap(lane => lane.steps.map(one => one.start_ms + one.length_ms)));
    const names = data.lanes.flatMap((lane, row) => lane.steps.length > 24 ? [] : lane.steps.filter(one => one.number !== null && !isMarked(one)).map(one => ({
      x: one.start_ms, y: row - 0.46, text: String(one.number), showarrow: false, xanchor: "left", yanchor: "bottom", font: {size: 10},
    })));
    names.push(...data.lanes.flatMap((lane, row) => lane.steps.filter(isMarked).map(one => ({  // above the numbers beside it, and within the chart
      ...(one.start_ms > latest / 2 ? {x: one.start_ms + one.length_ms, xanchor: "right"} : {x: one.start_ms, xanchor: "left"}), y: row - 0.46, yanchor: "bottom",
      text: "step " + one.number, showarrow: false, font: {size: 12, color: readColor("critical")}, bgcolor: readColor("back"),
    }))));
    const frames = data.lanes.flatMap((lane, row) => lane.steps.filter(isMarked).map(one => ({
      type: "rect", x0: one.start_ms, x1: one.start_ms + one.length_ms, y0: row - 0.46, y1: row + 0.46, line: {color: readColor("critical"), width: 3},
    })));
    drawGraph(at.lanes, traces, {
      barmode: "overlay", bargap: 0.35, height: 70 + 44 * labels.length, showlegend: false, shapes: [...marks, ...frames], annotations: names,
      margin: {l: 10, r: 10, t: frames.length ? 18 : 14, b: 40}, xaxis: {title: {text: "ms"}}, yaxis: {type: "category", autorange: "reversed"},
    });
    at.lanesNote.textContent = [data.lanes_note, frames.length ? `Step ${step} is framed.` : step === undefined ? "" : `Step ${step} is not among the steps shown.`].filter(Boolean).join(" ");
  }

  function drawFlame(trace, way) {
    const found = trace.flames[way];
    for (const button of at.ways.children) button.setAttribute("aria-pressed", String(button.value === way));
    at.flameNote.textContent = found.note;
    const {rows, names, steps} = found;
    const per = ns => traceNumber(ns / 1e6 / steps);
    const label = rows.map(row => escapeMarkup(row[0] < 0 ? "all" : names[row[0]]));
    // Nothing bold: plotly would write that as a style of its own, which the policy of the page refuses.
    const share = rows.map(row => `${escapeMarkup(cutText(row[0] < 0 ? "all" : names[row[0]], 120))}<br>${CALL_NAMES[row[2]]}<br>total ${per(row[4])} ms per step, ${(100 * row[4] / (rows[0][4] || 1)).toFixed(1)} %<br>self ${per(row[5])} ms, ${traceNumber(row[3] / steps)} calls a step`);
    drawGraph(at.flame, [{
      type: "icicle", ids: rows.map((_, place) => String(place)), labels: label, parents: rows.map(row => row[1] < 0 ? "" : String(row[1])),
      values: rows.map(row => row[4]), branchvalues: "total", hovertext: share, hoverinfo: "text", textinfo: "label", sort: true,
      marker: {colors: rows.map(row => CALL_COLORS[row[2]]), line: {width: 1, color: readColor("back")}},
      tiling: {orientation: "v", flip: "", pad: 0}, pathbar: {visible: false}, textposition: "middle left", outsidetextfont: {color: "#1c1e21"}, insidetextfont: {color: "#1c1e21"}, leaf: {opacity: 1},
    }], {height: 30 + 21 * Math.min(found.depth + 1, 45), margin: {l: 0, r: 0, t: 4, b: 4}, uniformtext: {minsize: 11, mode: "hide"}});
  }

  function fillFlames(trace) {
    const ways = Object.keys(trace.flames);
    at.flameSection.hidden = !ways.length;
    at.ways.replaceChildren();
    for (const way of ways) {
      const button = appendElement("button", "by " + way, at.ways);
      button.type = "button", button.value = way;
      button.addEventListener("click", () => drawFlame(trace, way));
    }
    if (ways.length) drawFlame(trace, ways[0]);
  }

  function fillMemory(trace) {
    at.memorySection.hidden = !trace.memory.length;
    dropCharts(at.memory);
    at.memory.replaceChildren();
    for (const one of trace.memory) {
      appendElement("h3", one.device, at.memory);
      appendElement("p", one.note, at.memory).className = "note";
      const graph = appendElement("div", undefined, at.memory);
      graph.className = "graph";
      const x = one.line.map(point => point[0]);
      const curve = {type: "scatter", mode: "lines", x, line: {shape: "hv", color: "#5b9bd5", width: 1.5}, hovertemplate: "%{x:.4g} ms: %{y:.4s}B<extra></extra>"};
      drawGraph(graph, [
        {...curve, y: one.line.map(point => point[2]), line: {...curve.line, width: 0}, hoverinfo: "skip", hovertemplate: undefined},
        {...curve, y: one.line.map(point => point[1]), fill: "tonexty", fillcolor: "rgba(91,155,213,.35)"},
      ], {
        height: 240, showlegend: false, margin: {l: 10, r: 10, t: 24, b: 40},
        xaxis: {title: {text: "ms"}}, yaxis: {rangemode: "tozero", tickformat: "~s", ticksuffix: "B"},
        shapes: trace.begins.map(ms => ({type: "line", x0: ms, x1: ms, yref: "paper", y0: 0, y1: 1, line: {color: "#8c9199", width: 1, dash: "dot"}})),
        annotations: [{x: one.peak_ms, y: one.peak, text: "peak " + traceBytes(one.peak), showarrow: true, arrowhead: 2, ax: 0, ay: -18}],
      });
      if (one.holders.length) fillTable(at.memory, {title: "At the peak, of what was allocated in the trace", columns: ["bytes", "share %", "allocated by"], rows: one.holders, note: ""});
    }
  }

  function fillTable(parent, found) {
    appendElement("h3", found.title, parent);
    if (found.note) appendElement("p", found.note, parent).className = "note";
    const rows = found.rows.slice();
    let wanted = "";
    if (rows.length > 15) {
      const search = appendElement("input", undefined, appendElement("div", undefined, parent));
      search.type = "search", search.placeholder = "search";
      search.setAttribute("aria-label", "search " + found.title);
      search.addEventListener("input", () => { wanted = search.value.toLowerCase(); fill(); });
    }
    const scroll = appendElement("div", undefined, parent);
    scroll.className = "scroll";
    const whole = appendElement("table", undefined, scroll), line = appendElement("tr", undefined, appendElement("thead", undefined, whole)), body = appendElement("tbody", undefined, whole);
    const numeric = found.columns.map((_, place) => rows.every(row => typeof row[place] !== "string"));
    const heads = found.columns.map((name, place) => {
      const head = appendElement("th", undefined, line), button = appendElement("button", name, head);
      button.type = "button";
      if (numeric[place]) head.className = "number";
      button.addEventListener("click", () => sort(place));
      return head;
    });
    let last = -1, down = false;
    function sort(place) {
      down = place === last ? !down : numeric[place];
      last = place;
      const compare = (a, b) => numeric[place] ? (a ?? -1) - (b ?? -1) : String(a).localeCompare(String(b));
      rows.sort((a, b) => (down ? -1 : 1) * compare(a[place], b[place]));
      heads.forEach((head, other) => other === place ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
      fill();
    }
    function fill() {
      body.replaceChildren();
      for (const row of rows) {
        if (wanted && !row.some(value => typeof value === "string" && value.toLowerCase().includes(wanted))) continue;
        const cells = appendElement("tr", undefined, body);
        row.forEach((value, place) => {
          const cell = appendElement("td", numeric[place] ? traceNumber(value) : value, cells);
          if (numeric[place]) cell.className = "number";
        });
      }
    }
    fill();
  }

  function show(trace) {
    at.verdict.textContent = trace.verdict;
    at.facts.replaceChildren();
    for (const fact of trace.facts) appendElement("li", fact, at.facts);
    if (download) download(trace, appendElement("li", undefined, at.facts));
    drawCalls(trace);
    at.tables.replaceChildren();
    for (const one of trace.tables) fillTable(at.tables, one);
  }

  function drawCalls(trace) {
    fillFlames(trace);
    fillMemory(trace);
  }

  const findShown = () => data.traces[Number(choice.value) || 0];

  function drawGraphs() {
    if (!root.contains(at.bar)) return;  // another page is shown
    drawBars();
    drawSteps();
    drawCalls(findShown());
  }

  data.traces.forEach((trace, place) => { appendElement("option", trace.label, choice).value = String(place); });
  choice.parentElement.hidden = data.traces.length < 2;
  choice.addEventListener("change", () => show(findShown()));
  followScheme(drawGraphs);
  drawBars();
  drawSteps();
  show(findShown());
  function choose(number) {
    choice.value = String(number);
    show(findShown());
  }
  return {drawGraphs, choose};
}

// The spans of a trace over time: the longest of the range that is in view, fetched anew with each zoom.
import {keepInAddress} from "./series.js";

export const POLL_MS = 700;
const LEAST_MS = 1e-4, SETTLE_MS = 150, LETTER_PX = 7, LEAST_LETTERS = 4, HEIGHT_PX = 460, LEAST_ROWS = 16;
const KINDS = {s: ["region", "#c38fc9"], f: ["Python function", "#7fb069"], o: ["operator", "#e6a157"], r: ["runtime call", "#a9b0b8"], k: ["kernel", "#5b9bd5"], c: ["copy or fill", "#d3c35b"]};
const MOVES = [["Earlier", -1, 1], ["Later", 1, 1], ["Zoom in", 0, 0.5], ["Zoom out", 0, 2], ["Whole trace", 0, Infinity]];  // by halves of the part, and how much longer
const HOW = "Drag to zoom in, double click to see all.";
const ASKING = "Asking for the longest spans ...";

export const pause = ms => new Promise(done => setTimeout(done, ms));

// Returns {show, redraw}: the one draws the timeline of a trace into the section, the other the same part again.
// The part in view stands in the address, and is moved by buttons too: a chart cannot be dragged by keys.
export function addTimeline(section, {base, ask}) {
  const tools = appendElement("div", undefined, section, "tools"), note = appendElement("p", ASKING, section, "note"), graph = appendElement("div", undefined, section, "graph");
  graph.id = "timeline", note.id = "timeline-note", note.setAttribute("role", "status");
  graph.style.height = HEIGHT_PX + "px", note.style.minHeight = "3em";  // nothing below moves when spans come
  let wanted = 0, trace = null, timer = 0, shown = null, view = null, sought;  // view: the part that was asked for last, drawn or not
  for (const [text, shift, scale] of MOVES) {
    const button = appendElement("button", text, tools);
    button.type = "button";
    button.addEventListener("click", () => move(shift, scale));
  }

  // range: [from, to] in milliseconds, or null for all. step: the part is that step, if the trace has it.
  async function load(range, step) {
    const mine = ++wanted, part = range ? {from_ms: range[0], to_ms: range[1]} : {step};
    sought = part.step;
    try {
      for (;;) {
        const found = await ask(base + "/traces/spans", {rank: trace.rank, attempt: trace.attempt, window: trace.window, ...part});
        if (mine !== wanted || !graph.isConnected) return;
        if (!found.reading) return draw(found);
        note.textContent = found.reading.text;
        await pause(POLL_MS);
      }
    } catch (error) {
      if (error.name !== "AbortError" && mine === wanted) note.textContent = error.message;
    }
  }

  function move(shift, scale) {
    if (!shown) return;
    const half = (view.to_ms - view.from_ms) / 2, middle = view.from_ms + half + shift * half, reach = Math.max(scale * half, LEAST_MS / 2);
    zoom(scale === Infinity || scale > 1 && 2 * reach >= shown.whole_ms ? null : [middle - reach, middle + reach]);
  }

  function zoom(range) {
    const [from_ms, to_ms] = (range || ["", ""]).map(ms => ms === "" ? "" : String(Number(ms.toPrecision(12))));
    keepInAddress({from_ms, to_ms});
    if (shown) view = range ? {from_ms: range[0], to_ms: range[1]} : {from_ms: 0, to_ms: shown.whole_ms};
    load(range);
  }

  function draw(found) {
    const tops = stackLanes(found), length = found.to_ms - found.from_ms || 1;
    shown = view = found;
    note.textContent = describeStep(found, sought) + describeSpans(found);
    if (!window.Plotly) return;
    const label = one => {  // as much of the name as the bar has room for
      const letters = Math.floor(0.8 * graph.clientWidth * one[4] / length / LETTER_PX);
      return letters < LEAST_LETTERS ? "" : escapeMarkup(cutText(found.names[one[0]].slice(1), letters));
    };
    Plotly.react(graph, Object.entries(KINDS).map(([kind, [title, color]]) => {
      const some = found.spans.filter(one => found.names[one[0]][0] === kind), name = one => escapeMarkup(cutText(found.names[one[0]].slice(1), 120));
      return {
        type: "bar", orientation: "h", name: title, x: some.map(one => one[4]), base: some.map(one => one[3]), y: some.map(one => tops.of[one[1]] + one[2]), width: 0.9,
        marker: {color, line: {width: 0}}, text: some.map(label), textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none",
        insidetextfont: {color: "#1c1e21", size: 10}, customdata: some.map(one => `${name(one)}<br>${escapeMarkup(found.lanes[one[1]])}`), hovertemplate: "%{customdata}<br>%{x:.5g} ms, from %{base:.6g} ms<extra></extra>",
      };
    }).filter(one => one.x.length), chartLayout({
      barmode: "overlay", height: HEIGHT_PX, showlegend: true, legend: {orientation: "h", y: 1, yanchor: "bottom"}, margin: {l: 10, r: 10, t: 30, b: 40},
      xaxis: {title: {text: "ms"}, range: [found.from_ms, found.to_ms]},
      yaxis: {tickvals: tops.of, ticktext: found.lanes.map(escapeMarkup), range: [Math.max(tops.rows, LEAST_ROWS) - 0.5, -0.6], fixedrange: true, automargin: true},
    }), {...CHART_CONFIG, doubleClick: "autosize"});
    graph.removeAllListeners("plotly_relayout");
    graph.on("plotly_relayout", followZoom);
  }

  function followZoom(change) {
    const [low, high] = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (low === undefined && !change["xaxis.autorange"]) return;
    clearTimeout(timer);
    timer = setTimeout(() => zoom(low === undefined ? null : [Number(low), Number(high)]), SETTLE_MS);
  }

  return {
    show(one, range, step) {
      trace = one, shown = view = null, note.textContent = ASKING;
      load(range, step);
    },
    redraw() {
      if (shown) draw(shown);
    },
  };
}

// The part that the address names, or null.
export function readRange(place) {
  const range = ["from_ms", "to_ms"].map(name => Number(place.get(name) || NaN));
  return range.every(Number.isFinite) && range[0] < range[1] ? range : null;
}

function describeStep(found, step) {
  if (step === undefined) return "";
  return found.step === step ? `Step ${step}. ` : `Step ${step} is not marked in this trace. `;
}

function describeSpans(found) {
  const count = found.spans.length.toLocaleString("en"), left = found.left_out.toLocaleString("en"), part = formatPart(found);
  if (!found.spans.length && !found.left_out) return `No span is ${part}.`;
  if (!found.spans.length) return `Too many spans of about the same length begin ${part} (${left}): zoom in to see them.`;
  if (!found.left_out) return `All spans ${part}: ${count}. ${HOW}`;
  return `${found.spans.length === 1 ? "The longest span" : `The ${count} longest spans`} ${part}; ${found.left_out === 1 ? "1 shorter one is" : `${left} shorter ones are`} left out. ${HOW}`;
}

// Milliseconds with as many digits as tell the ends of the part apart.
function formatPart({from_ms, to_ms}) {
  const maximumFractionDigits = Math.min(Math.max(2 - Math.floor(Math.log10(to_ms - from_ms || 1)), 0), 6);
  const [from, to] = [from_ms, to_ms].map(ms => ms.toLocaleString("en", {maximumFractionDigits}));
  return `from ${from} to ${to} ms`;
}

// The row at which each lane begins, and how many rows there are: a lane is as high as its spans are nested.
function stackLanes(found) {
  const deep = found.lanes.map(() => 0), of = [];
  for (const one of found.spans) deep[one[1]] = Math.max(deep[one[1]], one[2]);
  let rows = 0;
  for (const depth of deep) of.push(rows), rows += depth + 1.4;
  return {of, rows: Math.max(rows, 1)};
}

// What the pages with curves of metrics share: the tools above them, a chart for each key, a step that is marked.
import {drawWhenLoaded} from "./load_charts.js";

export const SHOWN = 24;  // charts at once: more of them are found by the filter

// What is chosen on a page stands in its address; what is as at first does not.
export function keepInAddress(words) {
  const place = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(words)) {
    if (value === "") place.delete(name);
    else place.set(name, value);
  }
  history.replaceState(null, "", location.pathname + (String(place) ? "?" + place : "") + location.hash);
}

// The filter of keys, smoothing, points and best values. change: called when something else is to be drawn.
export function addCurveTools(tools, change) {
  const place = new URLSearchParams(location.search);
  const filter = appendElement("input", undefined, appendElement("label", "keys ", tools));
  filter.type = "search", filter.id = "key-filter", filter.value = place.get("keys") || "";
  const smooth = appendElement("input", undefined, appendElement("label", "smoothing ", tools));
  smooth.type = "range", smooth.min = "0", smooth.max = "0.99", smooth.step = "0.01", smooth.value = place.get("smooth") || "0", smooth.id = "smooth";
  const told = appendElement("output", Number(smooth.value).toFixed(2), tools, "note");
  told.htmlFor = "smooth";
  const points = addBox(tools, "points", place.get("points") === "true"), best = addBox(tools, "best", place.get("best") !== "false");
  const count = appendElement("span", undefined, tools, "note");
  function keepAndChange() {
    keepInAddress({keys: filter.value, smooth: smooth.value === "0" ? "" : smooth.value, points: points.checked ? "true" : "", best: best.checked ? "" : "false"});
    change();
  }
  filter.addEventListener("input", keepAndChange);
  smooth.addEventListener("input", () => { told.textContent = Number(smooth.value).toFixed(2); });
  for (const input of [smooth, points, best]) input.addEventListener("change", keepAndChange);
  return {
    select(keys) {
      const fitting = keys.filter(key => key.toLowerCase().includes(filter.value.toLowerCase())), shown = fitting.slice(0, SHOWN);
      count.textContent = `${shown.length} of ${keys.length} keys`;
      return shown;
    },
    get smooth() { return smooth.value; },
    get points() { return points.checked; },
    get best() { return best.checked; },
  };
}

function addBox(tools, name, checked) {
  const label = appendElement("label", undefined, tools), box = appendElement("input", undefined, label);
  box.type = "checkbox", box.checked = checked, box.id = "curve-" + name;
  label.append(" " + name);
  return box;
}

// A step that the curves and the log share. It stands in the address. links: [[text, address of the step]].
export function addStepTools(tools, place, describe, change) {
  const input = appendElement("input", undefined, appendElement("label", "step ", tools));
  input.type = "number", input.min = "0", input.id = "step", input.value = place.get("step") || "";
  const links = appendElement("span", undefined, tools, "jumps");
  function choose(step) {
    input.value = step === null ? "" : String(step);
    keepInAddress({step: input.value});
    showLinks();
    change();
  }
  function showLinks() {
    links.replaceChildren();
    if (!input.value) return appendElement("span", "click a curve to choose a step", links, "note");
    for (const [text, to] of describe(Number(input.value))) {
      const link = appendElement("a", text, links);
      link.href = to;
    }
  }
  input.addEventListener("change", () => choose(input.value === "" ? null : Number(input.value)));
  showLinks();
  return {choose, get marks() { return input.value ? [{step: Number(input.value), severity: "info", code: "step " + input.value, title: "the chosen step"}] : []; }};
}

const UNITS = {pct: "%", frac: "", sec: "s", mb: "MB", gb: "GB", per_sec: "/s"};

export const formatUnit = unit => Object.hasOwn(UNITS, unit) ? UNITS[unit] : unit || "";

// Curves as drawCurves takes them. best: {step, value} or null.
export function describeCurve(name, curve, best) {
  const isDrawn = best && typeof best.value === "number";
  return {...breakCurve(name, curve), count: curve.count, best: isDrawn ? best : null};
}

// A chart for each key: [{key, unit, curves, note}]. steps: what addStepTools gave, or null.
// Headings and notes stand at once, with room for the curves; resolves when these are drawn.
export function drawCharts(charts, drawn, tools, steps) {
  const before = new Map([...charts.querySelectorAll(".chart")].map(place => [place.dataset.key, place]));
  charts.replaceChildren();
  const waiting = [];
  if (!drawn.length) appendElement("p", "No key contains this text.", charts, "state");
  const marks = steps ? steps.marks : [], range = findStepRange([...drawn.flatMap(one => one.curves), {x: marks.map(one => one.step)}]);
  for (const one of drawn) {
    const box = appendElement("div", undefined, charts);
    const unit = formatUnit(one.unit);
    appendElement("h3", one.key + (unit ? ` (${unit})` : ""), box);
    if (one.note) appendElement("p", one.note, box, "note");
    if (!one.curves.length) continue;
    const place = before.get(one.key) || appendElement("div", undefined, undefined, "chart"), chart = {x: "step", unit, bands: [], marked: marks.length > 0};
    before.delete(one.key), place.dataset.key = one.key, box.append(place);
    place.style.minHeight = heightOfCurves(place, chart, one.curves) + "px";
    waiting.push(() => drawCurves(place, chart, one.curves, marks, {logarithmic: false, points: tools.points, range, onStep: steps ? steps.choose : undefined}));
  }
  for (const place of before.values()) if (window.Plotly) Plotly.purge(place);
  const first = charts.firstElementChild;
  function drawAll() {
    if (charts.isConnected && charts.firstElementChild === first) for (const drawOne of waiting) drawOne();
  }
  followScheme(() => window.Plotly && drawAll());
  return drawWhenLoaded(charts, drawAll);
}

export const escapeGlob = text => text.replace(/[*?[]/g, found => `[${found}]`);

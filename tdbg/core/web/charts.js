// Charts of runs, for every page of tdbg: curves with findings on them, and lanes of what ranks did over time.
// Texts of the program become text nodes, and in charts are escaped: never markup.
"use strict";
// Told apart also by those who see no red or no green, on light and on dark: a test measures it.
const LINE_COLORS = ["#0689d9", "#da7814", "#763ded", "#a88985", "#aa4c89", "#d2003f"];
const LANE_COLORS = ["#0689d9", "#da7814", "#763ded", "#9a9fa8", "#b9d0e6"];  // what is not on record is pale
const CHART_CONFIG = {displayModeBar: false, responsive: true};
const MAX_LABELS = 14;  // findings with a label on a chart; each has its line

const escapeMarkup = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const cutText = (text, most) => text.length > most ? text.slice(0, most - 3) + "..." : text;

function appendElement(tag, text, parent, name) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (name) element.className = name;
  if (element.classList.contains("scroll")) element.tabIndex = 0;  // it scrolls by keys too
  if (parent) parent.appendChild(element);
  return element;
}

function formatNumber(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// Charts have colours of their own: they are drawn again where light and dark change. One page is shown at a time.
let redrawShown = null;

function followScheme(redraw) {
  if (!redrawShown) matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawShown());
  redrawShown = redraw;
}

function readColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function chartLayout(more) {
  const axis = {gridcolor: readColor("line"), zerolinecolor: readColor("line"), automargin: true};
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: readColor("front"), size: 12},
    hoverlabel: {namelength: 40}, margin: {l: 10, r: 10, t: 26, b: 34}, ...more,
    xaxis: {...axis, ...more.xaxis}, yaxis: {...axis, ...more.yaxis},
  };
}

// Before the charts below a place are replaced: until then plotly listens for them to the size of the window.
function dropCharts(root) {
  if (window.Plotly) for (const place of root.querySelectorAll(".js-plotly-plot")) Plotly.purge(place);
}

// By this a chart that is drawn again knows a curve: one that is hidden stays so, whichever come before it.
const makeUid = (kind, name) => kind + "-" + [...String(name)].map(letter => letter.codePointAt(0).toString(36)).join("-");

const knownAs = curve => curve.uid || curve.name;

// The number of each curve, which its colour goes by: one that was there before keeps it, a new one gets the least that is free.
function keepNumbers(place, uids) {
  const before = place.givenNumbers || new Map(), taken = new Set(uids.map(uid => before.get(uid)));
  let next = 0;
  const numbers = uids.map(uid => {
    if (before.has(uid)) return before.get(uid);
    while (taken.has(next)) next++;
    return next++;
  });
  place.givenNumbers = new Map(uids.map((uid, at) => [uid, numbers[at]]));
  return numbers;
}

// The range for an axis that grows with the run. While a person has zoomed it is that of before: another one would undo
// the zoom, since plotly takes it for wanted. key: what the axis shows; with another one nothing of it stays. A zoom that
// came from another chart (isLinked) is unknown to plotly, and stays since it is given again. free: the range without one.
function keepRange(place, name, key, range) {
  const given = place.givenRanges = place.givenRanges || {}, before = given[name], axis = place.layout && place.layout[name];
  const isSame = before && before.key === key;
  const isZoomed = isSame && axis && (before.isLinked || (before.range ? String(axis.range) !== String(before.range) : axis.autorange === false));
  given[name] = isZoomed ? {...before, free: range} : {key, range, free: range};
  return given[name].range ? {range: [...given[name].range]} : {};
}

// Charts whose x axes show the same: a zoom of one becomes that of all, and a double click undoes all of them.
// charts: [{place, toShared, fromShared}]: a value of its axis as one that all know, and back.
function linkZooms(charts) {
  let isBusy = false, isUndone = false;
  async function setAll(list, rangeOf) {
    isBusy = true;
    try {
      await Promise.all(list.map(one => Plotly.relayout(one.place, rangeOf(one))));
    } finally {
      isBusy = false;
    }
  }
  function follow(source) {
    const range = source.place.layout.xaxis.range.map(value => source.toShared(Number(value)));
    for (const one of charts) Object.assign(one.place.givenRanges.xaxis, {range: one === source ? source.place.layout.xaxis.range.map(Number) : range.map(one.fromShared), isLinked: true});
    return setAll(charts.filter(one => one !== source), one => ({"xaxis.range": [...one.place.givenRanges.xaxis.range]}));
  }
  function undo() {
    return setAll(charts, ({place}) => {
      const {key, free} = place.givenRanges.xaxis;
      place.givenRanges.xaxis = {key, range: free, free};
      return free ? {"xaxis.range": [...free]} : {"xaxis.autorange": true};
    });
  }
  for (const one of charts) {
    replaceListener(one.place, "plotly_doubleclick", () => { isUndone = true; });
    replaceListener(one.place, "plotly_relayout", changed => {
      if (isBusy) return;
      const isReset = isUndone;
      isUndone = false;  // also where it was a double click on the y axis, which the others do not share
      if (!Object.keys(changed).some(name => name.startsWith("xaxis."))) return;
      return isReset ? undo() : follow(one);
    });
  }
}

// The charts that share no axis with others any more.
function unlinkZooms(places) {
  for (const place of places) if (place.removeAllListeners) for (const event of ["plotly_doubleclick", "plotly_relayout"]) place.removeAllListeners(event);
}

// A value between the places ``from`` as one between the places ``to``; beyond the ends as between the two nearest.
function interpolate(from, to, value) {
  if (from.length < 2) return from.length ? to[0] + value - from[0] : value;
  let at = from.findIndex(one => one > value);
  at = Math.min(Math.max((at < 0 ? from.length : at) - 1, 0), from.length - 2);
  return to[at] + (value - from[at]) / ((from[at + 1] - from[at]) || 1) * (to[at + 1] - to[at]);
}

// What is called at an event of a chart, in place of what was called before: a chart that is kept is of another report.
function replaceListener(place, event, called) {
  place.removeAllListeners(event);
  if (called) place.on(event, called);
}

const worstSeverity = found => ["critical", "error", "warning"].find(one => found.includes(one)) || "info";

// Findings of one step share a line: [{step, numbers, severity}], the worst severity speaks.
function groupMarks(findings) {
  const groups = new Map();
  findings.forEach((finding, number) => {
    if (finding.step === null) return;
    const group = groups.get(finding.step) || {step: finding.step, numbers: [], severity: "info"};
    group.numbers.push(number);
    group.severity = worstSeverity([finding.severity, group.severity]);
    groups.set(finding.step, group);
  });
  return [...groups.values()].sort((a, b) => a.step - b.step);
}

function labelMark(group, findings) {
  return findings[group.numbers[0]].code + (group.numbers.length > 1 ? " +" + (group.numbers.length - 1) : "");
}

// The range of an axis whose values are all the same; undefined else: it is plotly's to find.
function constantRange(curves, bands) {
  let low = Infinity, high = -Infinity;
  for (const values of [...curves.map(curve => curve.y), ...bands.flatMap(band => [band.low, band.high])]) {
    for (const value of values) if (value !== null) low = Math.min(low, value), high = Math.max(high, value);
  }
  return low === high && low !== 0 ? (low > 0 ? [0, 2 * low] : [2 * low, 0]) : undefined;
}

// How high each chart becomes: its place is kept free until plotly is there.
const isNarrow = place => place.clientWidth < 500;

function countLegendRows(place, chart, curves) {
  const entries = curves.length + chart.bands.length;
  return entries > 1 ? Math.ceil(entries / (isNarrow(place) ? 2 : 4)) : 0;
}

const heightOfCurves = (place, chart, curves) => 250 + 20 * countLegendRows(place, chart, curves);
const heightOfRow = heat => heat.rows.length > 30 ? 11 : 18;
const heightOfHeat = heat => 50 + Math.max(heat.rows.length * heightOfRow(heat), 90);
const heightOfLane = rows => rows.length > 24 ? 15 : 26;
const heightOfLanes = lanes => 96 + heightOfLane(lanes.rows) * lanes.rows.length;

// A curve of metrics for drawCurves: null where its line breaks, before a gap and at what is not finite.
function breakCurve(name, {steps, values, gaps, not_finite_spans}) {
  const points = [...steps.map((step, at) => [step, 1, values[at]]), ...[...gaps, ...not_finite_spans.map(span => span[0])].map(step => [step, 0, null])];
  points.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return {name, x: points.map(point => point[0]), y: points.map(point => point[2]), gaps, non_finite: not_finite_spans};
}

// What joins the two sides of each gap of a curve: only that the value went from here to there is known.
function joinGaps(curve) {
  const gaps = new Set(curve.gaps), joined = {x: [], y: []}, isPoint = at => typeof curve.y[at] === "number";
  curve.x.forEach((step, at) => {
    if (curve.y[at] !== null || !gaps.has(step) || !isPoint(at - 1) || !isPoint(at + 1)) return;
    joined.x.push(curve.x[at - 1], curve.x[at + 1], null), joined.y.push(curve.y[at - 1], curve.y[at + 1], null);
  });
  return joined;
}

// The steps of all curves of a page, which its charts share: [first, last] with a margin; undefined without any.
function findStepRange(curves) {
  let low = Infinity, high = -Infinity;
  for (const {x, non_finite} of curves) {
    for (const step of x) low = Math.min(low, step), high = Math.max(high, step);
    for (const [first, last] of non_finite || []) low = Math.min(low, first), high = Math.max(high, last);
  }
  const margin = .02 * (high - low) || 1;
  return low <= high ? [low - margin, high + margin] : undefined;
}

// In which unit seconds are read: [seconds, name].
const pickTimeUnit = span => span > 7200 ? [3600, "hours"] : span > 300 ? [60, "minutes"] : [1, "seconds"];

// When a step was done, by a clock; between two steps that it knows in proportion.
function secondsAt({steps, seconds}, step) {
  let low = 0, high = steps.length - 1;
  if (high < 0) return 0;
  if (step <= steps[0] || step >= steps[high]) return step <= steps[0] ? seconds[0] : seconds[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  return seconds[low] + (step - steps[low]) / (steps[high] - steps[low]) * (seconds[high] - seconds[low]);
}

// The clocks that know a step; of a run that only evaluates, those of its calls: findings count these.
function listKnown(clocks) {
  const known = clocks.filter(one => one.steps.length), ofSteps = known.filter(one => one.x === "step");
  return ofSteps.length ? ofSteps : known;
}

const lastOf = list => list[list.length - 1];

// The clocks for what many processes share, that which reaches furthest first: the first process may have ended early.
const sortByReach = clocks => [...listKnown(clocks)].sort((a, b) => lastOf(b.steps) - lastOf(a.steps));

// When the processes did a step: by the first of these clocks that has it, else by the one that comes nearest before, else after it.
function secondsOfAll(step, reaching) {
  const begun = reaching.filter(({steps}) => steps[0] <= step), earliest = [...reaching].sort((a, b) => a.steps[0] - b.steps[0])[0];
  const clock = begun.find(({steps}) => step <= lastOf(steps)) || begun[0] || earliest;
  return clock ? secondsAt(clock, step) : 0;
}

// When a finding was: by a clock of its rank that came as far, else by any that did, else at the end of the first; null without a clock.
function secondsOfFinding({step, rank}, clocks) {
  const known = listKnown(clocks), reached = known.filter(({steps}) => steps[0] <= step && step <= lastOf(steps));
  const clock = reached.find(one => one.rank === rank) || known.find(one => one.rank === rank) || reached[0] || known[0];
  return clock ? secondsAt(clock, step) : null;
}

// The time that the charts of a page share, as drawCurves takes it: unit, and range with a margin. findings: those with a step.
function describeTime(curves, findings, clocks) {
  const ends = curves.flatMap(({x, clock}) => x.length ? [x[0], x[x.length - 1]].map(step => secondsAt(clocks[clock], step)) : []);
  const all = [...ends, ...findings.map(one => secondsOfFinding(one, clocks)).filter(one => one !== null)], low = Math.min(...all), high = Math.max(...all);
  const [seconds, unit] = pickTimeUnit(high - low), margin = (.02 * (high - low) || 1) / seconds;
  return {clocks, seconds, unit, range: all.length ? [low / seconds - margin, high / seconds + margin] : undefined};
}

// Curves with findings on them. time: of describeTime, if the x axis is that instead of steps. onFinding: called with the number of a finding that is clicked, onStep with where a curve
// is. points: show each value. best of a curve: {step, value}, which gets a star. range: of the x axis. Gaps of a curve are dotted.
function drawCurves(place, chart, curves, findings, options) {
  const traces = [], is_small = isNarrow(place), unit = escapeMarkup(chart.unit || ""), {time} = options;
  const placeBy = clock => step => time && step !== null ? secondsAt(time.clocks[clock || 0], step) / time.seconds : step;
  const reaching = time ? sortByReach(time.clocks) : [], placeBand = step => time ? secondsOfAll(step, reaching) / time.seconds : step;
  const where = time ? `%{x:.5g} ${time.unit}, ${chart.x} %{customdata}` : chart.x + " %{x}", axis = time ? time.unit : chart.x;  // in another unit a range means something else
  for (const band of chart.bands) {
    const edge = {type: "scatter", mode: "lines", x: band.x.map(placeBand), line: {width: 0, color: "#8c9199"}, hoverinfo: "skip", legendgroup: "band"};
    traces.push({...edge, uid: makeUid("low", band.name), y: band.low, showlegend: false});
    traces.push({...edge, uid: makeUid("high", band.name), y: band.high, name: escapeMarkup(band.name), fill: "tonexty", fillcolor: "rgba(140,145,153,.3)"});
  }
  const hasNonFinite = curves.some(curve => curve.non_finite.length);
  const numbers = keepNumbers(place, curves.map(knownAs));
  curves.forEach((curve, at) => {
    const number = numbers[at], color = LINE_COLORS[number % LINE_COLORS.length], dash = ["solid", "dot", "dash"][Math.floor(number / LINE_COLORS.length) % 3];
    const name = escapeMarkup(curve.name), toX = placeBy(curve.clock);
    traces.push({
      uid: makeUid("curve", knownAs(curve)), type: "scatter", mode: curve.x.length > 60 && !options.points ? "lines" : "lines+markers", name, legendgroup: String(number), x: curve.x.map(toX), y: curve.y, customdata: curve.x, connectgaps: false,
      opacity: curves.length > 6 ? .8 : 1, line: {color, width: curves.length > 6 ? 1.1 : 1.5, dash}, marker: {color, size: 4}, hovertemplate: where + ": %{y:.5g} " + unit + "<extra>" + name + "</extra>",
    });
    const joined = joinGaps(curve);
    if (joined.x.length) {
      traces.push({uid: makeUid("joined", knownAs(curve)), type: "scatter", mode: "lines+markers", name: name + " not on record", legendgroup: String(number), showlegend: false, x: joined.x.map(toX), y: joined.y, connectgaps: false,
        hoverinfo: "skip", opacity: .8, line: {color, width: 1, dash: "dot"}, marker: {color, size: 4}});
    }
    if (curve.best) {
      traces.push({uid: makeUid("best", knownAs(curve)), type: "scatter", mode: "markers", name: name + " best", legendgroup: String(number), showlegend: false, x: [curve.best.step], y: [curve.best.value],
        marker: {color, symbol: "star", size: 13, line: {width: 1, color: readColor("front")}}, hovertemplate: "best: " + chart.x + " %{x}: %{y:.5g} " + unit + "<extra>" + name + "</extra>"});
    }
    if (!curve.non_finite.length) return;
    const bad = {uid: makeUid("bad", knownAs(curve)), type: "scatter", mode: "lines+markers", name: name + " not finite", legendgroup: String(number), showlegend: false, yaxis: "y2", x: [], y: [], text: [], connectgaps: false,
      line: {color: readColor("critical"), width: 2}, marker: {color: readColor("critical"), symbol: "x", size: 7}, hovertemplate: "%{text}<extra>" + name + "</extra>"};
    for (const [first, last, count, kind] of curve.non_finite) {
      const words = kind.split("+").map(word => ({nan: "NaN", inf: "Inf", "-inf": "-Inf"}[word] || word)).join(", ");
      const text = escapeMarkup(`${words}: ${first === last ? chart.x + " " + first : chart.x + "s " + first + " to " + last + ", " + count + " values"}`);
      bad.x.push(toX(first), toX(last), null), bad.y.push(.03, .03, null), bad.text.push(text, text, "");
    }
    traces.push(bad);
  });
  const groups = chart.marked || time ? groupMarks(time && !listKnown(time.clocks).length ? [] : findings) : [], markX = group => time ? secondsOfFinding(findings[group.numbers[0]], time.clocks) / time.seconds : group.step;
  const shapes = groups.map(group => ({
    type: "line", x0: markX(group), x1: markX(group), yref: "paper", y0: 0, y1: 1, line: {color: readColor(group.severity), width: 1.3, dash: "dash"},
  }));
  const annotations = groups.slice(0, MAX_LABELS).map((group, number) => ({
    x: markX(group), yref: "paper", y: 1 - .08 * (number % 5), yanchor: "top", xanchor: "left", showarrow: false, captureevents: true,
    text: escapeMarkup(labelMark(group, findings)), font: {size: 10, color: readColor(group.severity)}, bgcolor: readColor("back"), opacity: .9,
    hovertext: group.numbers.slice(0, 4).map(at => escapeMarkup(cutText(findings[at].title, 90))).join("<br>"),
  }));
  const scale = options.logarithmic ? "log" : "linear";
  Plotly.react(place, traces, chartLayout({  // what was zoomed or hidden stays
    uirevision: "kept", height: heightOfCurves(place, chart, curves), shapes, annotations, showlegend: countLegendRows(place, chart, curves) > 0,
    legend: {orientation: "h", x: 0, y: -0.18, yanchor: "top", yref: "paper", font: {size: 11}},
    margin: {l: 10, r: 14, t: 10, b: 34}, xaxis: {uirevision: axis, title: {text: time ? time.unit + " since the start of the run" : chart.x, standoff: 4}, nticks: is_small ? 5 : 10, ...keepRange(place, "xaxis", axis, time ? time.range : options.range)},
    yaxis: {uirevision: scale, type: scale, ...keepRange(place, "yaxis", scale, options.logarithmic ? undefined : constantRange(curves, chart.bands)), exponentformat: "e", ticksuffix: unit ? " " + unit : ""},
    ...(hasNonFinite ? {yaxis2: {overlaying: "y", range: [0, 1], visible: false, fixedrange: true}} : {}),
  }), CHART_CONFIG);
  replaceListener(place, "plotly_clickannotation", options.onFinding && (event => options.onFinding(groups[event.index].numbers[0])));
  replaceListener(place, "plotly_click", options.onStep && (event => options.onStep(event.points[0].x)));
}

// From 0 to 1, dark to bright.
function scaleColor(share) {
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return `rgb(${stops[low].map((value, part) => Math.round(value + (at - low) * (stops[low + 1][part] - value))).join(",")})`;
}

// A row a parameter, by step, in colours of the logarithm; what is not finite is red. Bars with colours of their own:
// time: of describeTime, where columns are named by that. Heat maps and colour bars of plotly have inline styles, which the policy of the page refuses.
function drawHeat(place, heat, time) {
  const {least, most} = measureHeat(heat);
  const is_small = isNarrow(place), height = heightOfRow(heat);
  const cells = {x: [], y: [], base: [], text: [], color: []}, red = {x: [], y: [], base: [], text: []};
  function addCell(cells, row, column, told) {
    cells.x.push(column), cells.y.push(-1), cells.base.push(row + .5);
    cells.text.push(`${escapeMarkup(heat.rows[row])}<br>step ${heat.x[column]}: ${told}`);
  }
  heat.values.forEach((values, row) => values.forEach((value, column) => {
    if (value !== null) addCell(cells, row, column, formatNumber(value)), cells.color.push(scaleColor(value > 0 ? (Math.log10(value) - least) / (most - least || 1) : 0));
  }));
  for (const [row, column] of heat.not_finite) addCell(red, row, column, "not finite");
  const bar = {type: "bar", width: 1, hovertemplate: "%{text}<extra></extra>", textposition: "none", showlegend: false};
  const traces = [{...bar, ...cells, marker: {color: cells.color, line: {width: 0}}}];
  if (red.x.length) traces.push({...bar, ...red, marker: {color: "#d1242f", line: {width: 0}}});
  const rows = heat.rows.map((_, at) => at), columns = heat.x.map((_, at) => at);
  const ticks = columns.filter(at => at % Math.ceil(columns.length / (is_small ? 4 : 8)) === 0);
  const key = [heat.rows.length, ...heat.x.slice(0, 2)].join();  // while columns are as far apart, a range of them means the same
  Plotly.react(place, traces, chartLayout({
    uirevision: key,
    barmode: "overlay", bargap: 0, hovermode: "closest", height: heightOfHeat(heat), margin: {l: 10, r: 10, t: 8, b: 34},
    xaxis: {title: {text: time ? time.unit + " since the start of the run" : "step", standoff: 4}, tickvals: ticks,
      ticktext: ticks.map(at => time ? formatNumber(secondsAt(time.clocks[heat.clock], heat.x[at]) / time.seconds) : String(heat.x[at])), ...keepRange(place, "xaxis", key, [-.5, columns.length - .5]), showgrid: false, zeroline: false},
    yaxis: {tickvals: rows, ticktext: heat.rows.map(name => escapeMarkup(cutText(name, is_small ? 16 : 40))), ...keepRange(place, "yaxis", key, [rows.length - .5, -.5]), showgrid: false, zeroline: false, tickfont: {size: height > 15 ? 11 : 9}},
  }), CHART_CONFIG);
}

// The logarithms of the values of a heat map, and their range.
function measureHeat(heat) {
  const found = heat.values.flat().filter(value => value > 0).map(Math.log10);
  return {count: found.length, least: Math.min(...found), most: Math.max(...found)};
}

function describeHeatColors(heat) {
  const {count, least, most} = measureHeat(heat);
  const range = count ? `Dark is ${formatNumber(10 ** least)}, bright is ${formatNumber(10 ** most)}, on a logarithmic scale` : "No value";
  return range + (heat.not_finite.length ? "; red is not finite." : ".");
}

// One row a rank: its bars over time, its findings, its end.
function drawLanes(place, lanes, findings, options) {
  const rows = lanes.rows, height = heightOfLane(rows), is_small = isNarrow(place);
  const latest = Math.max(0, ...rows.map(row => Math.max(...row.ends.map(end => end.t), ...row.bars.map(bar => bar[2]))));
  const earliest = Math.min(latest, ...rows.map(row => row.bars.length ? row.bars[0][1] : latest));
  const [unit, unitName] = pickTimeUnit(latest - earliest);
  const traces = lanes.kinds.map((kind, number) => {
    const found = {uid: makeUid("kind", kind), type: "bar", name: escapeMarkup(kind), x: [], y: [], width: [], base: [], customdata: [], marker: {color: LANE_COLORS[number], line: {width: 0}}};
    rows.forEach((row, at) => {
      for (const [what, start, end, low, high, first, last] of row.bars) {
        if (what !== number) continue;
        found.x.push((start + end) / 2 / unit), found.width.push((end - start) / unit);
        found.base.push(at + .4 - .8 * low), found.y.push(-.8 * (high - low));
        const steps = first === null ? "" : first === last ? ", step " + first : ", steps " + first + " to " + last;
        found.customdata.push(`${escapeMarkup(row.name)}${steps}<br>${formatNumber(start)} s to ${formatNumber(end)} s: ${kind} ${Math.round(100 * (high - low))} %`);
      }
    });
    return {...found, hovertemplate: "%{customdata}<extra></extra>"};
  }).filter(found => found.x.length);
  const ends = {x: [], y: [], text: [], hover: [], color: []}, marks = {x: [], y: [], text: [], customdata: [], color: []};
  rows.forEach((row, at) => {
    for (const end of row.ends) {
      ends.x.push(end.t / unit), ends.y.push(at), ends.hover.push(escapeMarkup(`${row.name}: ${end.text} after ${formatNumber(end.t)} s`));
      ends.text.push(end.bad && !is_small ? escapeMarkup(" " + cutText(end.text, 24)) : ""), ends.color.push(end.bad ? readColor("error") : readColor("soft"));
    }
    for (const mark of row.marks) {
      marks.x.push(mark.t / unit), marks.y.push(at), marks.customdata.push(mark.findings[0]), marks.color.push(readColor(worstSeverity(mark.findings.map(one => findings[one].severity))));
      const titles = mark.findings.slice(0, 4).map(one => escapeMarkup(findings[one].code + " " + cutText(findings[one].title, 90)));
      marks.text.push([escapeMarkup(row.name) + (mark.step === null ? "" : ", step " + mark.step), ...titles].join("<br>"));
    }
  });
  const from = earliest / unit, until = latest / unit, span = Math.max(until - from, 1e-6);
  place.axisSeconds = unit;
  traces.push({uid: "ended", type: "scatter", mode: "markers+text", name: "ended", x: ends.x, y: ends.y, text: ends.text, textposition: "middle right", textfont: {size: 10, color: ends.color},
    marker: {symbol: "line-ns", size: height - 6, line: {width: 2.5, color: ends.color}}, customdata: ends.hover, hovertemplate: "%{customdata}<extra></extra>", showlegend: false});
  if (marks.x.length) traces.push({uid: "finding", type: "scatter", mode: "markers", name: "finding", x: marks.x, y: marks.y, text: marks.text, customdata: marks.customdata,
    marker: {symbol: "diamond", size: height > 20 ? 11 : 8, color: marks.color, line: {width: 1, color: readColor("back")}}, hovertemplate: "%{text}<extra></extra>"});
  const each = Math.ceil(rows.length / 64), shown = rows.map((_, at) => at).filter(at => at % each === 0);
  Plotly.react(place, traces, chartLayout({
    uirevision: unitName, barmode: "overlay", bargap: 0, height: heightOfLanes(lanes), showlegend: true, hovermode: "closest",
    legend: {orientation: "h", x: 0, y: 1, yanchor: "bottom", font: {size: 11}, traceorder: "normal"}, margin: {l: 10, r: 10, t: is_small ? 60 : 30, b: 40},
    xaxis: {title: {text: unitName + " since the start of the run", standoff: 4}, ...keepRange(place, "xaxis", unitName, [from - .02 * span, until + (is_small ? .04 : .14) * span]), zeroline: false, nticks: is_small ? 5 : 10},
    yaxis: {range: [rows.length - .4, -.6], tickvals: shown, ticktext: shown.map(at => escapeMarkup(cutText(rows[at].name, is_small ? 14 : 40))), showgrid: false, zeroline: false, tickfont: {size: height > 20 ? 12 : 10}, fixedrange: true},
  }), CHART_CONFIG);
  replaceListener(place, "plotly_click", options.onFinding && (event => {
    const point = event.points.find(one => typeof one.customdata === "number");
    if (point) options.onFinding(point.customdata);
  }));
}

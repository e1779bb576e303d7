// The report of a run: its story, its lanes and curves by charts.js, its tables. For the file and the viewer.
// data: what describe_run of tdbg/rules/report_page gives. options.plotly: a promise; until then there is text, and room
// for the charts. options.addLinks: called with a finding and the place of its links. options.kept: what readChoices gave
// of the report before: it stays as it was, charts with their zoom too. options.axis: "time" or "step", what the curves are
// drawn over; options.onAxis: called with what is chosen instead. options.onFinding: called with a finding that is clicked.
// Returns {redraw, showFinding, markFinding}.
function buildReport(root, data, options = {}) {
  const headline = appendElement("p", data.headline, root, data.severity);
  headline.id = "headline";
  fillList("facts", data.facts);
  fillList("lines", data.lines);

  const story = data.findings.length ? appendElement("ol", undefined, addSection("story-section", "Findings")) : null;
  if (story) story.id = "story", data.findings.forEach(fillFinding);

  const lanesSection = data.lanes.rows.length ? addSection("lanes-section", "Ranks over time") : null, lanes = lanesSection ? addLanes() : null;
  let axis = null;  // over what the curves are drawn
  const logarithmic = data.charts.length || data.heats.length ? addCharts() : null;
  const listAll = chart => [...chart.curves, ...chart.choices.flatMap(choice => choice.curves)];
  const curvesByStep = data.charts.filter(chart => chart.x === "step").flatMap(chart => [...listAll(chart), ...chart.bands]);
  const time = describeTime(data.charts.flatMap(listAll), data.findings.filter(one => one.step !== null), data.clocks);
  const found = data.findings.map(finding => finding.step).filter(step => typeof step === "number");
  const stepRange = curvesByStep.length ? findStepRange([...curvesByStep, {x: found}]) : undefined;  // their marks are within it
  const tables = appendElement("div", undefined, root);
  tables.id = "tables";
  data.tables.forEach(fillTable);

  function fillList(id, texts) {
    const list = appendElement("ul", undefined, root);
    list.id = id;
    for (const text of texts) appendElement("li", text, list);
  }

  function addSection(id, title) {
    const section = appendElement("section", undefined, root);
    section.id = id;
    appendElement("h2", title, section);
    return section;
  }

  function showFinding(number) {
    const card = markFinding(number);
    if (!card) return;
    const evidence = card.querySelector("details:not(.explanation)");
    if (evidence) evidence.open = true;
    card.scrollIntoView({behavior: "smooth", block: "center"});
  }

  function chooseFinding(number) {
    showFinding(number);
    if (options.onFinding) options.onFinding(data.findings[number]);
  }

  // The card of a finding, marked as the one that is shown; undefined where there is none.
  function markFinding(number) {
    const card = story ? story.children[number] : undefined;
    if (card) for (const one of story.children) one.classList.toggle("shown", one === card);
    return card;
  }

  function fillFinding(finding) {
    const card = appendElement("li", undefined, story, "finding " + finding.severity + (finding.follows ? " follower" : ""));
    card.id = "finding-" + finding.id;
    const head = appendElement("h3", undefined, card);
    if (finding.follows) appendElement("span", "followed by: ", head, "note");
    appendElement("span", finding.code + " " + finding.severity, head, "badge");
    head.append(" " + finding.title);
    if (finding.where.length) appendElement("p", finding.where.join(", "), card, "note");
    const told = appendElement("dl", undefined, card);
    for (const [name, text] of [["cause", finding.cause], ["try", finding.try_next]]) {
      if (text) appendElement("dt", name, told), appendElement("dd", text, told);
    }
    if (!told.children.length) told.remove();
    if (options.addLinks) options.addLinks(finding, appendElement("p", undefined, card, "jumps"));
    if (finding.evidence.length || finding.grade || finding.traceback.length) fillEvidence(finding, card);
  }

  function fillEvidence(finding, card) {
    const box = appendElement("details", undefined, card);
    box.open = data.findings.length <= 6 && finding.evidence.length <= 8;
    appendElement("summary", "evidence" + (finding.grade ? ", " + finding.grade : ""), box);
    const list = appendElement("ul", undefined, box);
    for (const line of finding.evidence) appendElement("li", line, list);
    if (finding.traceback.length) appendElement("pre", finding.traceback.join("\n"), box).tabIndex = 0;  // it scrolls by keys too
  }

  function addLanes() {
    appendElement("p", data.lanes.note, lanesSection, "note").id = "lanes-note";
    return addPlace("lanes", lanesSection);
  }

  // Of a chart, by its name: that of the report before, which keeps what was zoomed and hidden.
  function addPlace(name, parent) {
    const place = (options.kept && options.kept.places.get(name)) || appendElement("div", undefined, undefined, "chart");
    place.id = name;
    parent.append(place);
    return place;
  }

  function addCharts() {
    const section = addSection("charts-section", "Curves");
    const label = appendElement("label", undefined, appendElement("p", undefined, section, "tools"));
    const box = appendElement("input", undefined, label);
    box.type = "checkbox", box.id = "logarithmic", box.checked = Boolean(options.kept && options.kept.logarithmic);
    label.append(" logarithmic");
    axis = appendElement("select", undefined, appendElement("label", "over ", box.closest("p")));
    axis.id = "axis";
    for (const name of ["step", "time"]) appendElement("option", name, axis).value = name;
    axis.value = options.axis === "time" ? "time" : "step";
    axis.addEventListener("change", () => { redraw(); if (options.onAxis) options.onAxis(axis.value); });
    const charts = appendElement("div", undefined, section), heats = appendElement("div", undefined, section);
    charts.id = "charts", heats.id = "heats";
    for (const chart of data.charts) fillChart(chart, charts);
    data.heats.forEach((heat, number) => fillHeat(heat, heats, number));
    box.addEventListener("change", () => data.charts.forEach(drawChart));
    return box;
  }

  function fillChart(chart, charts) {
    const box = appendElement("div", undefined, charts);
    box.id = "chart-" + chart.id;
    appendElement("h3", chart.title, box);
    if (chart.choices.length > 1) {
      const label = appendElement("label", "of ", box);
      chart.select = appendElement("select", undefined, label);
      chart.select.id = "choice-" + chart.id;
      chart.choices.forEach((choice, number) => { appendElement("option", choice.name, chart.select).value = String(number); });
      const before = options.kept && options.kept.choices.get(chart.select.id);
      if (before < chart.choices.length) chart.select.value = before;
      chart.select.addEventListener("change", () => drawChart(chart));
    }
    appendElement("p", chart.note, box, "note");
    chart.place = addPlace("curves-" + chart.id, box);
  }

  function fillHeat(heat, heats, number) {
    const box = appendElement("div", undefined, heats);
    appendElement("h3", heat.title, box);
    appendElement("p", `${heat.note} ${describeHeatColors(heat)}`, box, "note");
    heat.place = addPlace("heat-" + number, box);
  }

  const getTime = () => axis && axis.value === "time" ? time : undefined;

  function listCurves(chart) {
    return chart.choices.length ? chart.choices[chart.select ? Number(chart.select.value) : 0].curves : chart.curves;
  }

  function drawChart(chart) {
    if (!window.Plotly) return;
    drawCurves(chart.place, chart, listCurves(chart), data.findings, {logarithmic: logarithmic.checked, onFinding: chooseFinding, time: getTime(), range: chart.x === "step" ? stepRange : undefined});
  }

  function fillTable(found) {
    const section = appendElement("section", undefined, found.id === "ranks" && lanesSection ? lanesSection : tables);
    section.id = "table-" + found.id;
    appendElement(section.parentElement === tables ? "h2" : "h3", found.title, section);
    if (found.note) appendElement("p", found.note, section, "note");
    fillRows(appendElement("div", undefined, section, found.rows.length > 40 ? "scroll" : "scroll whole"), found.columns, found.rows);
  }

  function reserveRoom() {
    if (lanes) lanes.style.minHeight = heightOfLanes(data.lanes) + "px";
    for (const chart of data.charts) chart.place.style.minHeight = heightOfCurves(chart.place, chart, listCurves(chart)) + "px";
    for (const heat of data.heats) heat.place.style.minHeight = heightOfHeat(heat) + "px";
  }

  function redraw() {
    if (!window.Plotly || !tables.isConnected) return;
    if (lanes) drawLanes(lanes, data.lanes, data.findings, {onFinding: chooseFinding});
    data.charts.forEach(drawChart);
    data.heats.forEach(heat => drawHeat(heat.place, heat, getTime()));
    unlinkZooms([...(lanes ? [lanes] : []), ...data.charts.map(chart => chart.place)]);
    linkZooms(listLinked());
  }

  // The charts that are drawn over steps; over time all of them, the ranks too.
  function listLinked() {
    const over = getTime(), same = value => value;
    const found = data.charts.filter(chart => over || chart.x === "step").map(chart => ({place: chart.place, toShared: same, fromShared: same}));
    for (const heat of data.heats) {
      const columns = heat.x.map((_, at) => at), places = over ? heat.x.map(step => secondsAt(over.clocks[heat.clock], step) / over.seconds) : heat.x;
      found.push({place: heat.place, toShared: value => interpolate(columns, places, value), fromShared: value => interpolate(places, columns, value)});
    }
    const ratio = lanes && over ? lanes.axisSeconds / over.seconds : 0;
    if (ratio) found.push({place: lanes, toShared: value => value * ratio, fromShared: value => value / ratio});
    return found;
  }

  if (options.kept) for (const place of options.kept.places.values()) if (!place.isConnected) Plotly.purge(place);
  if (options.kept) for (const [name, box] of listBoxes(root)) if (options.kept.boxes.has(name)) box.open = options.kept.boxes.get(name);
  reserveRoom();
  redraw();
  if (options.plotly) options.plotly.then(redraw, () => {});
  followScheme(redraw);
  return {redraw, showFinding, markFinding};
}

// What opens and closes, by the card it stands on.
const listBoxes = root => [...root.querySelectorAll(".finding > details")].map(box => [box.parentElement.querySelector("h3").textContent + box.className, box]);

// What a person has chosen on a report, and its charts: null before there is one.
function readChoices(root) {
  if (!root.querySelector("#headline")) return null;
  const choices = [...root.querySelectorAll("#charts select")].map(one => [one.id, one.value]);
  const places = [...root.querySelectorAll(".chart.js-plotly-plot")].map(place => [place.id, place]);
  return {places: new Map(places), logarithmic: root.querySelector("#logarithmic")?.checked, choices: new Map(choices), boxes: new Map(listBoxes(root).map(([name, box]) => [name, box.open]))};
}

const LONG_WORD = /\S{32}/;  // only words of this length are broken

// A table whose columns of numbers are aligned to the right.
function fillRows(place, columns, rows) {
  const whole = appendElement("table", undefined, place, columns.length > 4 ? "wide" : "");
  const line = appendElement("tr", undefined, appendElement("thead", undefined, whole)), body = appendElement("tbody", undefined, whole);
  const numeric = columns.map((_, at) => rows.every(row => typeof row[at] !== "string") && rows.some(row => row[at] !== null));
  columns.forEach((name, at) => appendElement("th", name, line, numeric[at] ? "number" : ""));
  for (const row of rows) {
    const cells = appendElement("tr", undefined, body);
    row.forEach((value, at) => appendElement("td", formatNumber(value), cells, numeric[at] ? "number" : LONG_WORD.test(value) ? "long" : ""));
  }
}

// The report of a run: its story, its lanes and curves by charts.js, its tables.
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);

function showFinding(number) {
  const card = at("story").children[number];
  for (const one of at("story").children) one.classList.toggle("shown", one === card);
  card.scrollIntoView({behavior: "smooth", block: "center"});
}

function fillStory() {
  at("story-section").hidden = !data.findings.length;
  for (const finding of data.findings) {
    const card = appendElement("li", undefined, at("story"), "finding " + finding.severity + (finding.follows ? " follower" : ""));
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
    if (finding.evidence.length || finding.grade || finding.traceback.length) fillEvidence(finding, card);
  }
}

function fillEvidence(finding, card) {
  const box = appendElement("details", undefined, card);
  box.open = data.findings.length <= 6 && finding.evidence.length <= 8;
  appendElement("summary", "evidence" + (finding.grade ? ", " + finding.grade : ""), box);
  const list = appendElement("ul", undefined, box);
  for (const line of finding.evidence) appendElement("li", line, list);
  if (finding.traceback.length) appendElement("pre", finding.traceback.join("\n"), box);
}

function fillCharts() {
  at("charts-section").hidden = !data.charts.length;
  for (const chart of data.charts) {
    const box = appendElement("div", undefined, at("charts"));
    box.id = "chart-" + chart.id;
    appendElement("h3", chart.title, box);
    if (chart.choices.length > 1) {
      const label = appendElement("label", "of ", box);
      chart.select = appendElement("select", undefined, label);
      chart.choices.forEach((choice, number) => { appendElement("option", choice.name, chart.select).value = String(number); });
      chart.select.addEventListener("change", () => drawChart(chart));
    }
    appendElement("p", chart.note, box, "note");
    chart.place = appendElement("div", undefined, box, "chart");
  }
}

function fillHeats() {
  for (const heat of data.heats) {
    const box = appendElement("div", undefined, at("heats"));
    appendElement("h3", heat.title, box);
    heat.line = appendElement("p", heat.note, box, "note");
    heat.place = appendElement("div", undefined, box, "chart");
  }
}

function drawChart(chart) {
  const curves = chart.choices.length ? chart.choices[chart.select ? Number(chart.select.value) : 0].curves : chart.curves;
  drawCurves(chart.place, chart, curves, data.findings, {logarithmic: at("logarithmic").checked, onFinding: showFinding});
}

function fillTable(found) {
  const section = appendElement("section", undefined, found.id === "ranks" && data.lanes.rows.length ? at("lanes-section") : at("tables"));
  section.id = "table-" + found.id;
  appendElement(section.parentElement.id === "tables" ? "h2" : "h3", found.title, section);
  if (found.note) appendElement("p", found.note, section, "note");
  const whole = appendElement("table", undefined, appendElement("div", undefined, section, "scroll"), found.columns.length > 4 ? "wide" : "");
  const line = appendElement("tr", undefined, appendElement("thead", undefined, whole)), body = appendElement("tbody", undefined, whole);
  const numeric = found.columns.map((_, place) => found.rows.every(row => typeof row[place] !== "string") && found.rows.some(row => row[place] !== null));
  found.columns.forEach((name, place) => appendElement("th", name, line, numeric[place] ? "number" : ""));
  for (const row of found.rows) {
    const cells = appendElement("tr", undefined, body);
    row.forEach((value, place) => appendElement("td", formatNumber(value), cells, numeric[place] ? "number" : ""));
  }
}

function draw() {
  if (data.lanes.rows.length) drawLanes(at("lanes"), data.lanes, data.findings, {onFinding: showFinding});
  data.charts.forEach(drawChart);
  data.heats.forEach(heat => { heat.line.textContent = heat.note + " " + drawHeat(heat.place, heat); });
}

at("headline").textContent = data.headline;
at("headline").className = data.severity;
for (const line of data.lines) appendElement("li", line, at("lines"));
for (const fact of data.facts) appendElement("li", fact, at("facts"));
at("lanes-section").hidden = !data.lanes.rows.length;
at("lanes-note").textContent = data.lanes.note;
fillStory();
fillCharts();
fillHeats();
data.tables.forEach(fillTable);
draw();
at("logarithmic").addEventListener("change", () => data.charts.forEach(drawChart));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.documentElement.dataset.drawn = "yes";

// Draws curves of metrics by charts.js.
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const CHART = {x: "step", unit: "", bands: [], marked: false};

function draw(graph) {
  drawCurves(graph.place, CHART, graph.broken, [], {logarithmic: at("logarithmic").checked, range});
}

for (const graph of data.graphs) graph.broken = graph.curves.map(curve => breakCurve(curve.name, curve));
const range = findStepRange(data.graphs.flatMap(graph => graph.broken));
at("note").textContent = data.note;
for (const graph of data.graphs) {
  graph.section = appendElement("section", undefined, at("graphs"));
  appendElement("h2", graph.key, graph.section);
  graph.place = appendElement("div", undefined, graph.section, "chart graph");
}
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const graph = data.graphs.find(one => one.section === entry.target);
    if (entry.isIntersecting && !graph.drawn) graph.drawn = true, draw(graph);
  }
}, {rootMargin: "400px"});
for (const graph of data.graphs) seen.observe(graph.section);
at("logarithmic").addEventListener("change", () => data.graphs.filter(graph => graph.drawn).forEach(draw));
at("filter").addEventListener("input", event => {
  for (const graph of data.graphs) graph.section.hidden = !graph.key.includes(event.target.value);
});

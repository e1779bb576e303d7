// Draws curves of metrics. Texts of the run become text nodes, and in graphs are escaped: never markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const CONFIG = {displayModeBar: false, responsive: true};
const escaped = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function made(tag, text, parent) {
  const found = document.createElement(tag);
  if (text !== undefined) found.textContent = text;
  parent.appendChild(found);
  return found;
}

function draw(graph) {
  const style = getComputedStyle(document.documentElement);
  const front = style.getPropertyValue("--front").trim(), line = style.getPropertyValue("--line").trim();
  const axis = {gridcolor: line, zerolinecolor: line, automargin: true};
  const traces = graph.curves.map(curve => ({
    type: "scatter", mode: curve.steps.length > 1 ? "lines" : "markers", name: escaped(curve.name), x: curve.steps, y: curve.values,
    hovertemplate: "step %{x}: %{y:.5g}<extra>" + escaped(curve.name) + "</extra>",
  }));
  Plotly.react(graph.place, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: front, size: 12}, margin: {l: 10, r: 10, t: 8, b: 30},
    showlegend: graph.curves.length > 1, legend: {orientation: "h", y: 1, yanchor: "bottom"},
    xaxis: {...axis, title: {text: "step"}}, yaxis: {...axis, type: at("logarithmic").checked ? "log" : "linear"},
  }, CONFIG);
}

at("note").textContent = data.note;
for (const graph of data.graphs) {
  graph.section = made("section", undefined, at("graphs"));
  made("h2", graph.key, graph.section);
  graph.place = made("div", undefined, graph.section);
  graph.place.className = "graph";
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

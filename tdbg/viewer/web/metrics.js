// Series over steps: a chart for each key, smoothed on request; points where there are few values.
import {loadPlotly} from "./overview.js";

const SHOWN = 24;  // charts at once: more of them are found by the filter

export async function showMetrics({root, base, ask, showState}) {
  const [listed] = await Promise.all([ask(base + "/metrics"), loadPlotly()]);
  const keys = [...new Set(listed.series.map(one => one.key))];
  if (!keys.length) return showState(root, "This run has logged no metric yet.");
  root.replaceChildren();
  const tools = appendElement("p", undefined, root, "tools");
  const filter = appendElement("input", undefined, appendElement("label", "keys ", tools));
  filter.type = "search", filter.id = "key-filter";
  const smooth = appendElement("input", undefined, appendElement("label", "smoothing ", tools));
  smooth.type = "range", smooth.min = "0", smooth.max = "0.99", smooth.step = "0.01", smooth.value = "0", smooth.id = "smooth";
  const told = appendElement("span", "0", tools, "note"), count = appendElement("span", undefined, tools, "note");
  const table = appendElement("details", undefined, root), charts = appendElement("div", undefined, root);
  appendElement("summary", "latest, best, least and most", table);
  charts.id = "charts";
  const value = point => point ? point.value : null, step = point => point ? point.step : null;
  fillRows(appendElement("div", undefined, table, "scroll"), ["key", "rank", "unit", "latest", "at step", "best", "at step", "least", "most", "values", "not finite"],
    listed.series.map(one => [one.key, one.rank, one.unit, value(one.latest), step(one.latest), value(one.best), step(one.best), value(one.least), value(one.most), one.count, one.not_finite]));

  let asked = 0;
  async function draw() {
    const mine = ++asked, wanted = keys.filter(key => key.toLowerCase().includes(filter.value.toLowerCase())).slice(0, SHOWN);
    told.textContent = smooth.value;
    count.textContent = `${wanted.length} of ${keys.length} keys`;
    const answers = await Promise.all(wanted.map(key => ask(base + "/metrics/curves", {key: escapeGlob(key), smooth: smooth.value})));
    if (mine !== asked) return;
    charts.replaceChildren();
    answers.forEach((answer, at) => {
      const box = appendElement("div", undefined, charts), several = new Set(answer.curves.map(one => one.rank)).size > 1;
      appendElement("h3", wanted[at], box);
      const curves = answer.curves.map(one => ({name: several ? "rank " + one.rank : one.source, x: one.steps, y: one.values, count: one.count,
        non_finite: one.not_finite_steps.map(bad => [bad, bad, 1, "not finite"])}));
      drawCurves(appendElement("div", undefined, box, "chart"), {x: "step", unit: "", bands: [], marked: false}, curves, [], {logarithmic: false});
    });
  }
  filter.addEventListener("input", draw);
  smooth.addEventListener("change", draw);
  await draw();
}

const escapeGlob = text => text.replace(/[*?[]/g, found => `[${found}]`);

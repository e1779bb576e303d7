// Series over steps: a chart for each key, smoothed on request, the best value marked; a step leads to the log.
import {addCurveTools, addStepTools, describeCurve, drawCharts, formatUnit} from "./series.js";

export async function showMetrics({root, base, run, ask, addressOf, showState}) {
  let listed = await ask(base + "/metrics");
  const listKeys = () => [...new Set(listed.series.map(one => one.key))];
  let keys = listKeys();
  if (!keys.length) return showState(root, "This run has logged no metric yet.");
  root.replaceChildren();
  const tools = addCurveTools(appendElement("p", undefined, root, "tools"), draw);
  const steps = addStepTools(appendElement("p", undefined, root, "tools"), new URLSearchParams(location.search),
    step => [[`Logs of step ${step}`, `${addressOf(run, "logs")}?kind=both&steps=${step}`]], drawAnswers);
  const table = appendElement("details", undefined, root), charts = appendElement("div", undefined, root);
  appendElement("summary", "latest, best, min and max", table);
  charts.id = "charts";
  const value = point => point ? point.value : null, step = point => point ? point.step : null;
  const figures = appendElement("div", undefined, table, "scroll");
  const fillFigures = () => fillRows(figures, ["key", "rank", "unit", "latest", "at step", "best", "at step", "min", "max", "values", "not finite"],
    listed.series.map(one => [one.key, one.rank, formatUnit(one.unit), value(one.latest), step(one.latest), value(one.best), step(one.best), value(one.least), value(one.most), one.count, one.not_finite]));
  fillFigures();

  let asked = 0, wanted = [], answers = [];
  async function draw() {
    const mine = ++asked, keysNow = tools.select(keys);
    const found = keysNow.length ? await ask(base + "/metrics/curves", {keys: JSON.stringify(keysNow), smooth: tools.smooth}) : {curves: []};
    if (mine !== asked) return;
    wanted = keysNow, answers = keysNow.map(key => found.curves.filter(curve => curve.key === key));
    await drawAnswers();
  }
  function drawAnswers() {
    return drawCharts(charts, answers.map((curves, at) => {
      const several = new Set(curves.map(one => one.rank)).size > 1, those = listed.series.filter(one => one.key === wanted[at]);
      const bestOf = curve => those.find(one => one.rank === curve.rank && one.source === curve.source)?.best;
      return {key: wanted[at], unit: those[0].unit, curves: curves.map(one => describeCurve(several ? "rank " + one.rank : one.source, one, tools.best ? bestOf(one) : null))};
    }), tools, steps);
  }
  await draw();
  return {async refresh() {
    listed = await ask(base + "/metrics"), keys = listKeys();
    figures.replaceChildren();
    fillFigures();
    await draw();
  }};
}

// The verdict of a run in words, its curves with findings, its ranks over time.
let plotly = null;

// Plotly is large: text stands on the page before it is there.
export function loadPlotly() {
  plotly = plotly || new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/assets/plotly.js";
    script.onload = done, script.onerror = () => failed(new Error("the charts need plotly: pip install 'tdbg[html]'"));
    document.head.append(script);
  });
  return plotly;
}

export async function showOverview({root, base, ask}) {
  const [data] = await Promise.all([ask(base + "/overview"), loadPlotly()]);
  root.replaceChildren();
  const report = buildReport(root, data);
  return {refresh: report.redraw};
}

// The script of the charts. It is large: pages show their text first, and leave room for the charts.
let loading = null;

function loadPlotly() {
  loading = loading || new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/assets/plotly.js";
    script.onload = done, script.onerror = () => {
      loading = null;  // the next page asks again
      failed(new Error("the charts need plotly, which could not be loaded: pip install 'tdbg[html]' where tdbg runs, or reload this page"));
    };
    document.head.append(script);
  });
  return loading;
}

// Resolves once the browser has shown what stands on the page; in a hidden window, which shows nothing, soon.
export const showFirst = () => new Promise(done => { requestAnimationFrame(() => setTimeout(done)); setTimeout(done, 100); });

// Resolves once charts can be drawn, and not before the text that stands on the page has been shown.
export const loadCharts = () => window.Plotly ? Promise.resolve() : showFirst().then(loadPlotly);

// Draws the charts of a page when they can be drawn; if never, the page says so in their place.
export async function drawWhenLoaded(root, draw) {
  const problem = await loadCharts().then(() => null, error => error);
  if (!root.isConnected) return;
  root.querySelector(":scope > .no-charts")?.remove();  // that of the try before
  if (problem) appendElement("p", problem.message, root, "state bad no-charts");
  else draw();
}

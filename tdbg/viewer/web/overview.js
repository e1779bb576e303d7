// The verdict of a run in words, its curves with findings, its ranks over time.
let plotly = null;
const POLL_MS = 2000;
const EVERY_MS = 15000;  // between drawings of a run that goes on

// Plotly is large: whoever can shows text before it is there.
export function loadPlotly() {
  plotly = plotly || new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/assets/plotly.js";
    script.onload = done, script.onerror = () => failed(new Error("the charts need plotly: pip install 'tdbg[html]'"));
    document.head.append(script);
  });
  return plotly;
}

// Resolves once the browser has shown what stands on the page; in a hidden window, which shows nothing, soon.
const showFirst = () => new Promise(done => { requestAnimationFrame(() => setTimeout(done)); setTimeout(done, 100); });

export async function showOverview({root, base, ask, listen}) {
  const [data, status] = await Promise.all([ask(base + "/overview"), ask(base + "/status")]);
  const plotly = showFirst().then(loadPlotly);
  draw(data);
  if (!data.is_final) waitForWhole();
  if (status.state === "running") follow();
  await plotly.catch(() => {});

  function follow() {
    let known = JSON.stringify(status.last_finding), drawnAt = Date.now();
    async function update(now) {  // at once at a new finding, else now and then
      const isNew = JSON.stringify(now.last_finding) !== known;
      if (!isNew && now.state === "running" && Date.now() - drawnAt < EVERY_MS) return;
      known = JSON.stringify(now.last_finding), drawnAt = Date.now();
      draw(await ask(base + "/overview"));
    }
    listen(base + "/events", {status: now => update(now).catch(() => {})});
  }

  async function waitForWhole() {  // a large run is judged beside the server
    try {
      for (;;) {
        await new Promise(done => setTimeout(done, POLL_MS));
        const found = await ask(base + "/overview");
        if (found.is_final) return draw(found);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  function draw(found) {
    const top = scrollY;
    root.replaceChildren();
    const report = appendElement("div", undefined, root);
    buildReport(report, found, {plotly});
    plotly.catch(error => report.querySelector("#headline").after(appendElement("p", error.message, undefined, "state bad")));
    scrollTo(0, top);
  }
}

// The verdict of a run in words, its curves with findings, its ranks over time.
import {loadCharts, showFirst} from "./load_charts.js";
import {keepInAddress} from "./series.js";
import {addressOfBatch} from "./tensors.js";

const POLL_MS = 2000;
const EVERY_MS = 15000;  // between drawings of a run that goes on

export async function showOverview({root, base, run, ask, listen, link, addressOf}) {
  const [data, status] = await Promise.all([ask(base + "/overview"), ask(base + "/status")]);
  const asked = new URLSearchParams(location.search).get("finding");
  let isLive = status.state === "running";
  const plotly = loadCharts();
  let batches, located = "", wasProfiled = false;
  const captured = new Map(), explained = new Map();
  const first = draw(data);
  if (asked !== null) first.showFinding(Number(asked));
  if (!data.is_final) waitForWhole();
  if (isLive) follow();
  await plotly.catch(() => {});

  function follow() {
    let known = JSON.stringify(status.last_finding), drawnAt = Date.now();
    async function update(now) {  // at once at a new finding, else now and then
      const isNew = JSON.stringify(now.last_finding) !== known;
      if (!isNew && now.state === "running" && Date.now() - drawnAt < EVERY_MS) return;
      known = JSON.stringify(now.last_finding), drawnAt = Date.now();
      const found = await ask(base + "/overview");
      isLive = now.state === "running";
      draw(found);
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
    const top = scrollY, now = JSON.stringify(found.findings.map(one => [one.code, one.step, one.rank, one.module]));
    if (now !== located) {  // what was kept is asked for again where a finding is new
      batches = showFirst().then(() => ask(base + "/batches")).then(answer => answer.batches).catch(() => []);
      captured.clear(), located = now;
    }
    const kept = readChoices(root), focused = root.contains(document.activeElement) && document.activeElement.id;
    wasProfiled = found.was_profiled && found.is_final;  // of a sample of the events not all traces are known
    root.replaceChildren();
    const report = appendElement("div", undefined, root);
    const built = buildReport(report, found, {plotly, addLinks, kept, axis: new URLSearchParams(location.search).get("axis"), onAxis: axis => keepInAddress({axis: axis === "time" ? "time" : ""})});
    if (isLive) report.querySelector("#facts").after(describeDrawing());
    plotly.catch(error => report.querySelector("#headline").after(appendElement("p", error.message, undefined, "state bad")));
    if (focused) document.getElementById(focused)?.focus({preventScroll: true});
    scrollTo(0, top);
    return built;
  }

  function describeDrawing() {
    const line = `The run goes on. Drawn at ${new Date().toLocaleTimeString("en-GB")}; drawn again at a new finding, else every ${EVERY_MS / 1000} s.`;
    return appendElement("p", line, undefined, "note");
  }

  // The step of a finding in the log and in the curves; the profiler trace of it; the batch that was saved then; tensors captured then.
  function addLinks(finding, place) {
    const add = (text, to) => place.append(link(to, text));
    if (finding.step !== null) {
      add(`Logs of step ${finding.step}`, `${addressOf(run, "logs")}?kind=both&steps=${finding.step}`);
      add(`Metrics at step ${finding.step}`, `${addressOf(run, "metrics")}?step=${finding.step}`);
    }
    addTrace(finding, place);
    const texts = [...finding.evidence, finding.try_next].join(" ");
    batches.then(list => {
      const named = list.filter(one => texts.includes(one.file));
      const same = list.filter(one => one.step === finding.step && one.rank === finding.rank);
      const batch = named.find(one => one.rank === finding.rank) || named[0] || (same.length === 1 ? same[0] : null);
      if (batch) add("Saved batch", addressOfBatch(addressOf(run, "tensors"), batch));
    });
    findCaptured(finding).then(one => {
      if (one) add("Captured tensors", `${addressOf(run, "tensors")}?key=${encodeURIComponent(one.key)}&nth=${one.nth}`);
    });
    addExplanation(finding.code, place.parentElement);
  }

  // The profiler trace of its step. A run that was not profiled needs no word about it.
  function addTrace({step, trace}, place) {
    if (trace) place.append(link(`${addressOf(run, "traces")}?${new URLSearchParams({file: trace, step})}`, `Trace of step ${step}`));
    else if (wasProfiled && step !== null) appendElement("span", `no trace covers step ${step}`, place, "note");
  }

  // What `tdbg explain` prints, asked for when it is opened.
  function addExplanation(code, card) {
    const box = appendElement("details", undefined, card, "explanation");
    appendElement("summary", `what ${code} means and what to do`, box);
    box.addEventListener("toggle", async () => {
      if (box.children.length > 1) return;
      const text = appendElement("div", explained.has(code) ? "" : "Loading ...", box);
      try {
        if (!explained.has(code)) explained.set(code, (await ask("/rules/" + encodeURIComponent(code))).page);
        fillProse(text, explained.get(code));
      } catch (error) {
        text.textContent = error.message;
      }
    });
  }

  // The first datapoint of its step and rank, undefined where there is none.
  function findCaptured({module, step, rank}) {
    const name = `${step} ${rank}`;
    if (!module || step === null || rank === null) return Promise.resolve();
    if (!captured.has(name)) captured.set(name, askCaptured({steps: step, ranks: rank, limit: 1}));
    return captured.get(name);
  }

  async function askCaptured(query) {
    try {
      await plotly;  // text and charts come first
      return (await ask(base + "/pages/datapoints", query)).rows[0];
    } catch {
      return undefined;  // the pages say what is wrong
    }
  }
}

// Text in lines of a terminal: paragraphs and items are wrapped anew, indented lines stay as they are.
function fillProse(place, text) {
  place.replaceChildren();
  for (const block of text.split(/\n\s*\n/)) {
    let part = null;
    for (const line of block.split("\n")) {
      const name = line.startsWith("    ") ? "pre" : "p";
      if (!part || part.localName !== name || line.startsWith("- ")) {
        part = appendElement(name, line.trimEnd(), place);
        if (name === "pre") part.tabIndex = 0;  // it scrolls by keys too
      } else part.textContent += (name === "pre" ? "\n" : " ") + line.trimEnd();
    }
  }
}

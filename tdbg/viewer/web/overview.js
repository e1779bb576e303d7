// The verdict of a run in words, its curves with findings, its ranks over time.
import {describeDrawing, findNamed, followDrawing} from "./drawing.js";
import {findFocus, restoreFocus} from "./focus.js";
import {loadCharts, showFirst} from "./load_charts.js";
import {keepInAddress} from "./series.js";
import {addressOfBatch} from "./tensors.js";

const POLL_MS = 2000;
const PARAMETER = /\.([^.]*_)?(weight|bias)(_(ih|hh)_l\d+[^.]*|_[gv])?$/;  // ends the name: .weight, .in_proj_bias, .weight_ih_l0

export async function showOverview({root, base, run, ask, listen, link, addressOf}) {
  const [data, status] = await Promise.all([ask(base + "/overview"), ask(base + "/status")]);
  const nameAsked = () => new URLSearchParams(location.search).get("finding");
  let isLive = status.state === "running", isSought = nameAsked() !== null;  // until the finding of the address is there
  const plotly = loadCharts();
  let batches, located = "", wasProfiled = false, isWaiting = false;
  const captured = new Map(), explained = new Map();
  let linked = [];  // links that are on their way
  draw(data);
  if (!data.is_final) waitForWhole();
  if (isLive) followDrawing({listen, base, status, redraw: drawAgain});
  await plotly.catch(() => {});

  async function drawAgain(now) {
    const found = await ask(base + "/overview");
    isLive = now.state === "running";
    draw(found);
    if (!isLive && !found.is_final) waitForWhole();
  }

  async function waitForWhole() {  // a large run is judged beside the server
    if (isWaiting) return;
    isWaiting = true;
    try {
      for (;;) {
        await new Promise(done => setTimeout(done, POLL_MS));
        const found = await ask(base + "/overview");
        if (found.is_final) return draw(found);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      isWaiting = false;
    }
  }

  function draw(found) {
    const top = scrollY, now = JSON.stringify(found.findings.map(one => [one.code, one.step, one.rank, one.module]));
    if (now !== located) {  // what was kept is asked for again where a finding is new
      batches = showFirst().then(() => ask(base + "/batches")).then(answer => answer.batches).catch(() => []);
      captured.clear(), located = now;
    }
    const kept = readChoices(root), focused = findFocus(root);
    wasProfiled = found.was_profiled && found.is_final;  // of a sample of the events not all traces are known
    root.replaceChildren();
    linked = [];
    const report = appendElement("div", undefined, root);
    const built = buildReport(report, found, {plotly, addLinks, kept, axis: new URLSearchParams(location.search).get("axis"), onAxis: axis => keepInAddress({axis: axis === "time" ? "time" : ""}), onFinding: one => { isSought = false; keepInAddress({finding: one.id}); }});
    if (isLive) report.querySelector("#facts").after(appendElement("p", describeDrawing(), undefined, "note"));
    plotly.catch(error => report.querySelector("#headline").after(appendElement("p", error.message, undefined, "state bad")));
    keepFocus(focused);
    scrollTo(0, top);
    showAsked(built, found);
  }

  // Links to what was kept come a little later than the text.
  function keepFocus(focused) {
    if (!focused || restoreFocus(focused)) return;
    Promise.allSettled(linked).then(() => document.activeElement === document.body && restoreFocus(focused));
  }

  // The finding of the address: it is scrolled to once, when it is there, and stays marked. The address stays as it is: another
  // finding may stand for one that is not there.
  function showAsked(built, {findings, is_final}) {
    const number = nameAsked() === null ? -1 : findNamed(findings, nameAsked(), is_final && !isLive);
    if (number < 0) return;
    if (isSought) built.showFinding(number);
    else built.markFinding(number);
    isSought = false;
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
    linked.push(batches.then(list => {
      const named = list.filter(one => texts.includes(one.file));
      const same = list.filter(one => one.step === finding.step && one.rank === finding.rank);
      const batch = named.find(one => one.rank === finding.rank) || named[0] || (same.length === 1 ? same[0] : null);
      if (batch) add("Saved batch", addressOfBatch(addressOf(run, "tensors"), batch));
    }));
    linked.push(findCaptured(finding).then(one => {
      if (!one) return;
      const when = one.step === null || one.step === finding.step ? "" : ` of step ${formatNumber(one.step)}`;
      add("Captured tensors" + when + (one.whose || ""), `${addressOf(run, "tensors")}?${new URLSearchParams({key: one.key, nth: one.nth, ...(one.module ? {module: one.module} : {})})}`);
    }));
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

  // What was captured of a finding, by as much of module, step and rank as is known: of its module, or of that which
  // it is in, the last before its step; else what was captured at its step. whose: told where it is not of its module.
  // Undefined where there is nothing.
  async function findCaptured({module, step, rank}) {
    if (!module && step === null && rank === null || !(await askCaptured({limit: 1}))) return;
    const ranks = rank === null ? "" : rank, until = step === null ? {} : {steps: `0:${step}`, sort: "step", descending: true};
    for (const name of module ? [module, module.replace(/\.[^.]*$/, "")] : []) {
      const found = await askCaptured({module: name, ranks, ...until, limit: 1});
      if (found) return {...found, module: name, whose: name === module || PARAMETER.test(module) ? "" : `, of ${cutText(name, 40)} around it`};
    }
    const found = step !== null || rank !== null ? await askCaptured({steps: step === null ? "" : step, ranks, limit: 1}) : undefined;
    return found && {...found, whose: module ? ", of other modules" : ""};
  }

  // The first row of an answer, asked for once.
  function askCaptured(query) {
    const name = JSON.stringify(query);
    if (!captured.has(name)) captured.set(name, plotly.catch(() => {}).then(() => ask(base + "/pages/datapoints", query)).then(answer => answer.rows[0], () => undefined));  // text and charts come first; the pages say what is wrong
    return captured.get(name);
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

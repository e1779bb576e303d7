// Profiler traces, as trace.js draws them for the file too; the trace itself can be downloaded.
import {drawWhenLoaded} from "./load_charts.js";
import {keepInAddress} from "./series.js";
import {POLL_MS, addTimeline, pause, readRange} from "./timeline.js";

export async function showTraces({root, base, run, ask, addressOf, link, open, download, showState}) {
  const place = new URLSearchParams(location.search), ranks = place.get("ranks") || "", file = place.get("file") || "";
  const data = await waitForTraces(() => ask(base + "/traces/page", {ranks, file}), root, showState);
  if (!data.traces.length) return showState(root, "This run was not profiled: `tdbg profile` records traces.");
  root.replaceChildren();
  if (file) {
    const step = place.get("step"), covers = step && data.lanes.some(lane => lane.steps.some(one => String(one.number) === step));
    const line = appendElement("p", `The trace ${covers ? `that covers step ${step}: ` : ""}${file}. `, root, "note");
    line.id = "one-trace", line.append(link(addressOf(run, "traces"), "All traces of this run"));
  }
  const form = appendElement("form", undefined, root, "tools");
  const choice = appendElement("select", undefined, appendElement("label", "trace ", form));
  choice.id = "trace";
  const input = appendElement("input", undefined, appendElement("label", "ranks ", form));
  input.value = ranks, input.id = "trace-ranks", input.placeholder = "0,3-5";
  appendElement("button", "Show", form).type = "submit";
  form.addEventListener("submit", event => {
    event.preventDefault();
    open(addressOf(run, "traces") + (input.value ? "?" + new URLSearchParams({ranks: input.value}) : ""));
  });
  const chosen = Number(place.get("trace")), step = /^\d{1,15}$/.test(place.get("step")) ? Number(place.get("step")) : undefined;
  const timeline = document.createElement("section");
  appendElement("h2", "Timeline", timeline);
  const {show: showTimeline, redraw: redrawTimeline} = addTimeline(timeline, {base, ask});
  let current = null;
  const {drawGraphs, choose} = buildTraces(root, data, choice, (trace, place) => {
    timeline.hidden = trace.rank === null, current = trace;
    if (trace.rank === null) return;
    if (timeline.isConnected) showTimeline(trace, null, step);
    const button = appendElement("button", "Save the trace for Perfetto", place), told = appendElement("span", undefined, place, "note");
    button.type = "button", button.className = "save", told.setAttribute("role", "status");
    button.title = "open the file in ui.perfetto.dev or chrome://tracing";
    button.addEventListener("click", async () => {
      button.disabled = true, told.textContent = " Loading ...";
      try {
        await download(base + "/traces/file", {rank: trace.rank, attempt: trace.attempt, window: trace.window});
        told.textContent = " Saved: open it in ui.perfetto.dev or chrome://tracing.";
      } catch (error) {
        told.textContent = " " + error.message;
      }
      button.disabled = false;
    });
  }, step);
  choice.addEventListener("change", () => keepInAddress({trace: choice.value === "0" ? "" : choice.value, from_ms: "", to_ms: ""}));
  if (chosen > 0 && chosen < data.traces.length) choose(chosen);
  followScheme(() => (drawGraphs(), redrawTimeline()));
  root.querySelector("#memory").parentElement.before(timeline);
  if (current && !timeline.hidden) showTimeline(current, readRange(place), step);
  if (!window.Plotly) await drawWhenLoaded(root.querySelector("#tables"), () => {
    drawGraphs();
    redrawTimeline();
  });
}

// A large trace is read beside the server: the page says how far that is.
async function waitForTraces(load, root, showState) {
  let data = await load();
  if (data.reading) {
    showState(root, data.reading.text);
    root.firstChild.setAttribute("role", "status");
  }
  while (data.reading) {
    root.firstChild.textContent = data.reading.text;
    await pause(POLL_MS);
    data = await load();
  }
  return data;
}

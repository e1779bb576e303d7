// Profiler traces, as trace.js draws them for the file too; the trace itself can be downloaded.
import {drawWhenLoaded} from "./load_charts.js";
import {keepInAddress} from "./series.js";

export async function showTraces({root, base, run, ask, addressOf, link, open, download, showState}) {
  const place = new URLSearchParams(location.search), ranks = place.get("ranks") || "", file = place.get("file") || "";
  const data = await ask(base + "/traces/page", {ranks, file});
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
  const chosen = Number(place.get("trace"));
  const {drawGraphs, choose} = buildTraces(root, data, choice, (trace, place) => {
    if (trace.rank === null) return;
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
  }, place.get("step") ? Number(place.get("step")) : undefined);
  choice.addEventListener("change", () => keepInAddress({trace: choice.value === "0" ? "" : choice.value}));
  if (chosen > 0 && chosen < data.traces.length) choose(chosen);
  if (!window.Plotly) await drawWhenLoaded(root.querySelector("#tables"), drawGraphs);
}

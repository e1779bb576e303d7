// The list of runs: state, worst severity, verdict, length, last loss; a filter over all of it; two of them can be compared.
import {keepInAddress} from "./series.js";

const PART = 1000;  // runs that are asked for at once
const COLUMNS = ["run", "state", "worst", "verdict", "duration", "steps", "last loss", "command"];

export async function showRuns({root, ask, showState, link, addressOf, open}) {
  const found = await ask("/runs", {limit: PART});
  if (!found.runs.length) return showState(root, "There is no run here yet: start one with `tdbg run`.");
  root.replaceChildren();
  const tools = appendElement("p", undefined, root, "tools"), label = appendElement("label", "filter ", tools);
  const filter = appendElement("input", undefined, label);
  filter.type = "search", filter.id = "filter", filter.placeholder = "name, code, state ...", filter.value = new URLSearchParams(location.search).get("filter") || "";
  const count = appendElement("span", undefined, tools, "note");
  const compare = appendElement("button", "Compare two", tools), ticked = new Set();
  compare.type = "button", compare.id = "compare", compare.disabled = true;
  compare.addEventListener("click", () => open(addressOfComparison(...ticked)));
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll whole"), "runs stacked");
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  appendElement("th", undefined, head).setAttribute("aria-label", "compare");
  for (const name of COLUMNS) appendElement("th", name, head, name === "steps" || name === "last loss" || name === "duration" ? "number" : "");
  const rows = [];
  function addRun(run) {
    const row = appendElement("tr", undefined, body);
    addTick(run.name, appendElement("td", undefined, row));
    appendElement("td", undefined, row, "title").append(link(addressOf(run.name, "overview"), run.name));
    appendElement("td", run.state, row).dataset.name = "state";
    const worst = appendElement("td", undefined, row);
    appendElement("span", run.codes.length ? run.severity : "-", worst, "severity " + (run.severity || "")), worst.dataset.name = "worst";
    fillVerdict(run, appendElement("td", undefined, row));
    for (const [name, text] of [["duration", formatDuration(run.duration_s)], ["steps", formatNumber(run.steps)], ["last loss", formatNumber(run.loss)]]) {
      appendElement("td", text, row, "number").dataset.name = name;
    }
    appendElement("td", cutText(run.command.join(" "), 160), row, "mono");
    rows.push([row, `${row.textContent} ${run.codes.join(" ")}`.toLowerCase()]);
  }
  found.runs.forEach(addRun);
  const more = appendElement("button", `Load ${PART} more`, root);
  more.type = "button", more.id = "more", more.hidden = !found.left_out;
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      const part = await ask("/runs", {limit: PART, offset: rows.length});
      part.runs.forEach(addRun);
      more.hidden = !part.runs.length || rows.length >= found.runs.length + found.left_out;
      applyFilter();
    } catch (error) {
      if (error.name !== "AbortError") count.textContent = error.message;
    }
    more.disabled = false;
  });
  function addTick(name, cell) {
    const box = appendElement("input", undefined, cell);
    box.type = "checkbox", box.setAttribute("aria-label", "compare " + name);
    box.addEventListener("change", () => {
      if (box.checked) ticked.add(name);
      else ticked.delete(name);
      compare.disabled = ticked.size !== 2;
      for (const other of body.querySelectorAll("input")) other.disabled = ticked.size === 2 && !other.checked;
    });
  }
  function applyFilter() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const [row, text] of rows) row.hidden = !words.every(word => text.includes(word)), left += row.hidden ? 0 : 1;
    const all = found.runs.length + found.left_out;
    count.textContent = rows.length < all ? `${left} of the newest ${rows.length} runs; ${all} in all` : `${left} of ${rows.length} runs`;
  }
  filter.addEventListener("input", () => (keepInAddress({filter: filter.value}), applyFilter()));
  applyFilter();
}

// The finding that the verdict leads with.
function fillVerdict(run, cell) {
  cell.textContent = run.title ? run.title : run.severity ? run.verdict : run.state === "running" ? "still running" : "none saved: `tdbg report` computes it";
  if (run.codes.length > 1) appendElement("span", ` and ${run.codes.length - 1} more`, cell, "note").title = run.codes.join(", ");
}

export const addressOfComparison = (first, second) => `/runs#/compare/${encodeURIComponent(first)}/${encodeURIComponent(second)}`;

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? minutes + " min" : Math.floor(minutes / 60) + " h " + minutes % 60 + " min";
}

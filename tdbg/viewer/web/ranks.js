// Ranks: what each does now, and what it did over time.
import {drawWhenLoaded} from "./load_charts.js";

const COLUMNS = ["rank", "state", "step", "of", "steps/s", "loss", "level", "flags", "cost %", "host"];

export async function showRanks({root, base, run, ask, listen, addressOf, open}) {
  const [status, data] = await Promise.all([ask(base + "/status"), ask(base + "/overview")]);
  root.replaceChildren();
  appendElement("h2", "Now", root);
  const told = appendElement("p", undefined, root, "note"), table = appendElement("div", undefined, root, "scroll whole");
  told.setAttribute("role", "status");
  appendElement("p", "cost %: the same share as on the page Overview, up to each rank's last report: tdbg's own time in the steps, without start-up and the opening inspection, which has an allowance of its own.", root, "note");
  function fill(now) {
    told.textContent = now.state === "running" ? "The run goes on; this table follows it." : `The run has ended: ${now.exit}.`;
    table.replaceChildren();
    if (!now.ranks.length) return appendElement("p", "No rank has done a step yet.", table, "note");
    fillRows(table, COLUMNS, now.ranks.map(one => [one.rank, one.state, one.step, one.planned, one.steps_per_s, one.loss, one.level, one.flags.join(", "), one.cost_pct, one.host]));
  }
  fill(status);
  appendElement("h2", "Over time", root);
  if (status.state === "running") listen(base + "/events", {status: fill});
  if (!data.lanes.rows.length) return void appendElement("p", "No step is on record yet.", root, "note");
  appendElement("p", data.lanes.note, root, "note");
  const place = appendElement("div", undefined, root, "chart");
  place.style.minHeight = heightOfLanes(data.lanes) + "px";
  const draw = () => drawLanes(place, data.lanes, data.findings, {onFinding: number => open(`${addressOf(run, "overview")}?finding=${number}`)});
  followScheme(() => window.Plotly && place.isConnected && draw());
  await drawWhenLoaded(place, draw);
}

// Ranks: what each does now, when it was last seen, and what it did over time.
import {describeDrawing, followDrawing} from "./drawing.js";
import {drawWhenLoaded} from "./load_charts.js";

const COLUMNS = ["rank", "state", "step", "of", "steps/s", "loss", "level", "flags", "cost %", "host"];
const AGE_AT = 3;  // the column "last seen" of a run that goes on: it is seen on a narrow screen
const TICK_MS = 1000;

export async function showRanks({root, base, run, ask, listen, addressOf, open, stop}) {
  const [first, data] = await Promise.all([ask(base + "/ranks"), ask(base + "/overview")]);
  if (stop.aborted) return;
  root.replaceChildren();
  appendElement("h2", "Now", root);
  const told = appendElement("p", undefined, root, "note"), quiet = appendElement("p", undefined, root), table = appendElement("div", undefined, root, "scroll whole");
  told.setAttribute("role", "status"), quiet.id = "quiet";
  appendElement("p", "cost %: the same share as on the page Overview, up to each rank's last report: tdbg's own time in the steps, without start-up and the opening inspection, which has an allowance of its own.", root, "note");
  let status, statusAt;
  function fill(now) {
    status = now, statusAt = Date.now();
    const isLive = now.state === "running";
    told.textContent = isLive ? "The run goes on; this table follows it." : `The run has ended: ${now.exit}.`;
    quiet.hidden = true;
    table.replaceChildren();
    if (!now.ranks.length) return appendElement("p", "No rank has done a step yet.", table, "note");
    fillRows(table, isLive ? COLUMNS.toSpliced(AGE_AT, 0, "last seen") : COLUMNS, now.ranks.map(one => describeRank(one, isLive)));
    tellAges();
  }
  // The ages grow by themselves, also while no rank says anything.
  function tellAges() {
    if (status.state !== "running") return;
    const since = (Date.now() - statusAt) / 1000, age = one => one.last_seen_s === null ? "never" : formatAge(one.last_seen_s + since);
    table.querySelectorAll("tbody tr").forEach((row, at) => { row.children[AGE_AT].textContent = age(status.ranks[at]); });
    const silent = status.ranks.filter(one => one.quiet);
    quiet.hidden = !silent.length, quiet.className = "bad";
    quiet.textContent = `Quiet: ${silent.map(one => `rank ${one.rank} at step ${formatNumber(one.step)}, last seen ${age(one)}`).join("; ")}.`;
  }
  fill(first);
  const lanes = addLanes();
  if (first.state === "running") follow();
  await lanes.draw(data);

  // The table goes on whether or not the charts are there yet.
  function follow() {
    const ticking = setInterval(tellAges, TICK_MS);
    stop.addEventListener("abort", () => clearInterval(ticking));
    followDrawing({listen, base, update: fill, redraw: async now => lanes.draw(await ask(base + "/overview"), now.state === "running")});
  }

  function addLanes() {
    appendElement("h2", "Over time", root);
    const drawn = appendElement("p", undefined, root, "note"), note = appendElement("p", undefined, root, "note"), place = appendElement("div", undefined, root, "chart");
    drawn.id = "drawn", place.id = "lanes";
    return {draw(data, isLive = first.state === "running") {
      drawn.textContent = isLive ? describeDrawing() : "";
      note.textContent = data.lanes.rows.length ? data.lanes.note : "No step is on record yet.";
      if (!data.lanes.rows.length) return;
      place.style.minHeight = heightOfLanes(data.lanes) + "px";
      const draw = () => drawLanes(place, data.lanes, data.findings, {onFinding: number => open(`${addressOf(run, "overview")}?${new URLSearchParams({finding: data.findings[number].id})}`)});
      followScheme(() => window.Plotly && place.isConnected && draw());
      return drawWhenLoaded(place, draw);
    }};
  }
}

const describeRank = (one, isLive) => [one.rank, one.state, one.step, ...(isLive ? [""] : []), one.planned, one.steps_per_s, one.loss, one.level, one.flags.join(", "), one.cost_pct, one.host];

function formatAge(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  return whole < 120 ? `${whole} s ago` : whole < 7200 ? `${Math.floor(whole / 60)} min ago` : `${Math.floor(whole / 3600)} h ago`;
}

// Two runs side by side: status and verdict, the settings that differ, curves of both on one axis.
import {addressOfComparison, formatDuration} from "./runs.js";
import {addCurveTools, describeCurve, drawCharts, escapeGlob} from "./series.js";

const baseOf = run => "/runs/" + encodeURIComponent(run);
const namesOf = names => names[0] === names[1] ? [names[0], names[1] + " (again)"] : names;

export async function showComparison({root, names, ask, addressOf, link}) {
  const [found, ...listed] = await Promise.all([ask("/compare", {first: names[0], second: names[1]}), ...names.map(name => ask(baseOf(name) + "/metrics"))]);
  root.replaceChildren();
  const swap = appendElement("p", undefined, root, "tools");
  swap.append(link(addressOfComparison(names[1], names[0]), "Swap the two"));
  const cards = appendElement("div", undefined, root, "pair");
  found.runs.forEach((one, at) => fillRun(appendElement("section", undefined, cards), one, LINE_COLORS[at], link(addressOf(one.entry.name, "overview"), one.entry.name)));
  fillSettings(root, found, names);
  await fillCurves(root, names, listed, ask);
}

function fillRun(card, {entry, headline}, color, to) {
  const head = appendElement("h2", undefined, card), mark = appendElement("span", "\u25a0 ", head);
  mark.style.color = color;
  head.append(to);
  appendElement("p", headline || "no verdict yet", card, entry.severity ? "verdict " + entry.severity : "verdict");
  const facts = [["state", entry.state + (entry.exit ? ", " + entry.exit : "")], ["duration", formatDuration(entry.duration_s)], ["steps", formatNumber(entry.steps)], ["last loss", formatNumber(entry.loss)], ["command", cutText(entry.command.join(" "), 300)]];
  const list = appendElement("dl", undefined, card, "facts");
  for (const [name, text] of facts) appendElement("dt", name, list), appendElement("dd", text, list, name === "command" ? "mono" : "");
}

function fillSettings(root, found, names) {
  const section = appendElement("section", undefined, root);
  section.id = "settings";
  appendElement("h2", "Settings that differ", section);
  appendElement("p", found.differences.length ? `${found.same} others are equal.` : `None: all ${found.same} are equal.`, section, "note");
  if (!found.differences.length) return;
  const told = value => value === null || value === undefined ? "-" : typeof value === "string" ? value : Array.isArray(value) && value.every(one => typeof one === "string") ? value.join(" ") : JSON.stringify(value);
  fillRows(appendElement("div", undefined, section, "scroll"), ["setting", ...namesOf(names)], found.differences.map(one => [one.name, told(one.first), told(one.second)]));
}

async function fillCurves(root, names, listed, ask) {
  const section = appendElement("section", undefined, root), both = namesOf(names);
  section.id = "both-curves";
  appendElement("h2", "Curves", section);
  const keysOf = listed.map(one => new Set(one.series.map(series => series.key)));
  const keys = [...[...keysOf[0]].filter(key => keysOf[1].has(key)), ...[...keysOf[0]].filter(key => !keysOf[1].has(key)), ...[...keysOf[1]].filter(key => !keysOf[0].has(key))];
  if (!keys.length) return appendElement("p", "Neither run has logged a metric.", section, "note");
  appendElement("p", "Each curve shows the lowest rank that logged the key. The star marks the best logged value (not smoothed).", section, "note");
  const tools = addCurveTools(appendElement("p", undefined, section, "tools"), draw), charts = appendElement("div", undefined, section);
  charts.id = "charts";
  let asked = 0;
  async function draw() {
    const mine = ++asked, wanted = tools.select(keys);
    const drawn = await Promise.all(wanted.map(key => describeKey(key)));
    if (mine === asked) await drawCharts(charts, drawn, tools, null);
  }
  async function describeKey(key) {
    const curves = [], missing = [];
    const series = listed.map(one => one.series.filter(found => found.key === key).sort((a, b) => a.rank - b.rank)[0]);
    await Promise.all(series.map(async (one, at) => {
      if (!one) return missing.push(both[at]);
      const answer = await ask(baseOf(names[at]) + "/metrics/curves", {key: escapeGlob(key), ranks: one.rank, smooth: tools.smooth});
      const curve = answer.curves.find(found => found.source === one.source);
      if (curve) curves[at] = describeCurve(both[at], curve, tools.best ? one.best : null);
    }));
    const unit = series.find(Boolean).unit;
    return {key, unit, curves: [0, 1].map(at => curves[at] || {name: both[at], x: [], y: [], non_finite: []}), note: missing.length ? `not logged by ${missing.join(", ")}` : ""};
  }
  await draw();
}

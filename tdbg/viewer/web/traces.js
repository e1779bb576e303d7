// Profiler traces: steps by part, the longest operators, the tree of calls.
const TOP = 40;

export async function showTraces({root, base, ask, showState}) {
  const found = await ask(base + "/traces");
  if (!found.traces.length) return showState(root, "This run was not profiled: `tdbg profile` records traces.");
  root.replaceChildren();
  const milliseconds = value => value === null || value === undefined ? null : value / 1e6;
  for (const trace of found.traces) {
    const section = appendElement("section", undefined, root);
    appendElement("h2", `rank ${trace.rank === null ? "?" : trace.rank}, window ${trace.window}`, section);
    appendElement("p", trace.verdict, section);
    const parts = Object.entries(trace.parts || {});
    if (parts.length) fillRows(appendElement("div", undefined, section, "scroll"), ["part of a step", "share %"], parts.map(([name, share]) => [name, 100 * share]));
    appendElement("h3", "Steps", section);
    fillRows(appendElement("div", undefined, section, "scroll"), ["step", "ms"], trace.steps.map(step => [step.number, milliseconds(step.end - step.start)]));
    appendElement("h3", "Operators", section);
    fillRows(appendElement("div", undefined, section, "scroll"), ["operator", "calls", "own ms", "total ms"],
      trace.operators.slice(0, TOP).map(one => [one.name, one.calls, milliseconds(one.own), milliseconds(one.total)]));
  }
}

// Level and flags: what is on and what it did; with --control they can be switched while the run goes on.
const LEVELS = ["off", "basic", "advanced", "extreme"];

export async function showFlags({root, base, ask, send, canControl}) {
  const found = await ask(base + "/flags"), mayChange = canControl && found.state === "running";
  root.replaceChildren();
  const tools = appendElement("p", `Level ${found.level}. `, root, "tools"), told = appendElement("p", undefined, root, "note");
  told.setAttribute("role", "status");
  if (found.state !== "running") told.textContent = "The run has ended: these are its last level and flags.";
  else if (!canControl) told.textContent = "Read-only: `tdbg view --control` lets this page change them.";
  async function change(body) {
    told.textContent = "Sending ...";
    try {
      const answer = await send(base + "/flags", body);
      told.textContent = `Requested: all ranks switch at step ${answer.at_step}.`;
    } catch (error) {
      told.textContent = error.message + (error.tryNext ? ": " + error.tryNext : "");
    }
  }
  for (const level of mayChange ? LEVELS : []) {
    const button = appendElement("button", level, tools);
    button.type = "button";
    button.setAttribute("aria-pressed", String(level === found.level));
    button.addEventListener("click", () => change({level}));
  }
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll whole"), "flags stacked");
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  for (const name of ["flag", "on", "observations", "description"]) appendElement("th", name, head, name === "observations" ? "number" : "");
  const byLevel = "by level " + found.level;
  for (const flag of found.flags) {
    const row = appendElement("tr", undefined, body);
    appendElement("td", flag.name, row, "title");
    const cell = appendElement("td", undefined, row);
    cell.dataset.name = "on";
    if (mayChange) {
      const box = appendElement("input", undefined, cell);
      box.type = "checkbox", box.checked = flag.is_on;
      box.setAttribute("aria-label", flag.name);
      box.addEventListener("change", () => change({flags: {[flag.name]: box.checked}}));
      if (flag.by_level) cell.append(" " + byLevel);
    } else {
      cell.textContent = flag.is_on ? "on" : flag.by_level ? byLevel : "-";
    }
    appendElement("td", formatNumber(flag.observations), row, "number").dataset.name = "observations";
    appendElement("td", flag.summary, row);
  }
}

// Level and flags: what is on and what it did; with --control they can be switched while the run goes on.
const LEVELS = ["off", "basic", "advanced", "extreme"];

export async function showFlags({root, base, ask, send, canControl}) {
  const first = await ask(base + "/flags");
  root.replaceChildren();
  const tools = appendElement("p", undefined, root, "tools"), told = appendElement("p", undefined, root, "note");
  const place = appendElement("div", undefined, root, "scroll whole");
  told.setAttribute("role", "status");
  if (first.state !== "running") told.textContent = "The run has ended: these are its last level and flags.";
  else if (!canControl) told.textContent = "Read-only: `tdbg view --control` lets this page change them.";
  fill(first);
  return {refresh};

  async function refresh() {
    fill(await ask(base + "/flags"));
  }

  // What was clicked is not yet so: the page shows what the run says.
  async function change(body) {
    told.textContent = "Sending ...";
    try {
      const answer = await send(base + "/flags", body);
      told.textContent = `Requested: all ranks switch at step ${answer.at_step}.`;
    } catch (error) {
      told.textContent = error.message + (error.tryNext ? ": " + error.tryNext : "");
      await refresh().catch(() => {});
    }
  }

  function fill(found) {
    const mayChange = canControl && found.state === "running", focused = nameOf(document.activeElement);
    fillLevels(found, mayChange);
    fillTable(found, mayChange);
    if (focused) [...root.querySelectorAll("button, input")].find(one => nameOf(one) === focused)?.focus();
  }

  function fillLevels(found, mayChange) {
    tools.textContent = `Level ${found.level}. `;
    for (const level of mayChange ? LEVELS : []) {
      const button = appendElement("button", level, tools);
      button.type = "button";
      button.setAttribute("aria-pressed", String(level === found.level));
      button.addEventListener("click", () => change({level}));
    }
  }

  function fillTable(found, mayChange) {
    place.replaceChildren();
    const table = appendElement("table", undefined, place, "flags stacked");
    const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
    for (const name of ["flag", "on", "observations", "description"]) appendElement("th", name, head, name === "observations" ? "number" : "");
    const byLevel = "by level " + found.level;
    for (const flag of found.flags) {
      const row = appendElement("tr", undefined, body);
      appendElement("td", flag.name, row, "title");
      const cell = appendElement("td", undefined, row);
      cell.dataset.name = "on";
      if (mayChange) addBox(flag, cell, byLevel);
      else cell.textContent = flag.is_on ? "on" : flag.by_level ? byLevel : "-";
      appendElement("td", formatNumber(flag.observations), row, "number").dataset.name = "observations";
      appendElement("td", flag.summary, row);
    }
  }

  function addBox(flag, cell, byLevel) {
    const box = appendElement("input", undefined, cell);
    box.type = "checkbox", box.checked = flag.is_on;
    box.setAttribute("aria-label", flag.name);
    box.addEventListener("change", () => change({flags: {[flag.name]: box.checked}}));
    if (flag.by_level) cell.append(" " + byLevel);
  }

  function nameOf(element) {
    return root.contains(element) && element !== root ? element.getAttribute("aria-label") || element.textContent : "";
  }
}

// Log records: filters in the address, records whole, more of them on request; a step leads to the curves.
const FIELDS = [["flag", "flag", "LOSS"], ["ranks", "ranks", "0,3-5"], ["level", "level", ""], ["steps", "steps", "7,100:200"], ["text", "text (a regular expression)", ""]];
const KINDS = ["debug", "info", "both"], LEVELS = ["", "DEBUG", "STATS", "INFO", "WARNING", "ERROR", "CRITICAL"];

export async function showLogs({root, base, ask, addressOf, run, open}) {
  const place = new URLSearchParams(location.search);
  root.replaceChildren();
  const form = appendElement("form", undefined, root, "tools"), inputs = {};
  function addSelect(name, options) {
    const select = appendElement("select", undefined, appendElement("label", name + " ", form));
    for (const option of options) appendElement("option", option || "any", select).value = option;
    select.value = place.get(name) || options[0], inputs[name] = select, select.id = "logs-" + name;
    select.addEventListener("change", () => form.requestSubmit());
  }
  addSelect("kind", KINDS);
  for (const [name, told, example] of FIELDS) {
    if (name === "level") { addSelect("level", LEVELS); continue; }
    const input = appendElement("input", undefined, appendElement("label", told + " ", form));
    input.value = place.get(name) || "", input.id = "logs-" + name, input.placeholder = example, inputs[name] = input;
  }
  const label = appendElement("label", undefined, form), collapse = appendElement("input", undefined, label);
  collapse.type = "checkbox", collapse.id = "logs-collapse", collapse.checked = place.get("collapse") === "true";
  label.append(" merge identical records of all ranks");
  appendElement("button", "Filter", form).type = "submit";
  form.addEventListener("submit", event => {
    event.preventDefault();
    inputs.steps.value = inputs.steps.value.replace(/(\d)\s*-\s*(\d)/g, "$1:$2");  // as ranks are written
    const words = buildWords();
    open(addressOf(run, "logs") + (String(words) ? "?" + words : ""));
  });
  collapse.addEventListener("change", () => form.requestSubmit());
  function buildWords() {
    const words = new URLSearchParams(Object.entries(inputs).map(([name, input]) => [name, input.value]).filter(([name, value]) => value && !(name === "kind" && value === "debug")));
    if (collapse.checked) words.set("collapse", "true");
    return words;
  }
  addFlagTree(root, () => ask(base + "/logs/counts", {kind: inputs.kind.value}), flag => {
    inputs.flag.value = flag;
    form.requestSubmit();
  });
  const told = appendElement("p", undefined, root, "note"), list = appendElement("ol", undefined, root, "records");
  told.setAttribute("role", "status");
  const more = appendElement("button", "More", root);
  let after = "", count = 0;
  async function addRecords() {
    more.disabled = true;
    told.textContent = "Searching ...";
    try {
      let found;
      do {  // an answer may hold no record yet, and say where to go on
        found = await ask(base + "/logs", {...Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value])), collapse: collapse.checked ? "true" : "", after});
        for (const record of found.records) appendRecord(record, list, addressOf, run);
        count += found.records.length, after = found.after || "";
        told.textContent = `${count} records; ${formatShare(found.looked_at, found.total)} of the logs searched`;
      } while (after && !found.records.length);
    } catch (error) {
      if (error.name === "AbortError") return;
      told.textContent = error.message + (error.tryNext ? ": " + error.tryNext : "");
      after = "";
    }
    more.disabled = false, more.hidden = !after;
    if (!after && !count && told.textContent.startsWith("0 records")) told.textContent = "No record matches.";
  }
  more.addEventListener("click", addRecords);
  await addRecords();
}

// The flags that have records, as a tree; a click shows the records of one. count: asks for them, once the tree is opened.
function addFlagTree(root, count, choose) {
  const box = appendElement("details", undefined, root), told = appendElement("p", undefined, box, "note");
  box.prepend(appendElement("summary", "flags that have records"));
  box.id = "flag-tree", told.textContent = "Counting ...";
  box.addEventListener("toggle", async () => {
    if (box.querySelector("ul")) return;
    const list = appendElement("ul", undefined, box);
    try {
      const found = await count();
      told.textContent = !found.tags.length ? "No record has a tag." : found.looked_at < found.total ? `Counted in the first ${formatNumber(found.looked_at / 2 ** 20)} MiB of the logs.` : "";
      told.hidden = !told.textContent;
      fillFlags(list, buildFlagTree(found.tags), "", choose);
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
      list.remove();
    }
  });
}

// LOSS.MASKS is a part of LOSS; tags that no flag owns stand by their own names.
function buildFlagTree(tags) {
  const top = {parts: new Map(), records: 0};
  for (const {tag, flag, records} of tags) {
    let at = top;
    for (const part of (flag || tag).split(".")) {
      if (!at.parts.has(part)) at.parts.set(part, {parts: new Map(), records: 0});
      at = at.parts.get(part), at.records += records;
    }
    if (flag) at.flag = flag;
  }
  return top;
}

function fillFlags(list, node, path, choose) {
  for (const [part, inner] of node.parts) {
    const name = path ? path + "." + part : part, item = appendElement("li", undefined, list);
    if (inner.flag || inner.parts.size) {
      const button = appendElement("button", name, item);
      button.type = "button";
      button.addEventListener("click", () => choose(name));
    } else {
      appendElement("span", name + " (no flag)", item);
    }
    appendElement("span", ` ${formatNumber(inner.records)}`, item, "note");
    if (inner.parts.size) fillFlags(appendElement("ul", undefined, item), inner, name, choose);
  }
}

function formatShare(part, whole) {
  const share = whole ? Math.min(100, Math.round(100 * part / whole)) : 100;
  return !whole ? "all" : part && !share ? "less than 1 %" : share + " %";
}

function appendRecord(record, list, addressOf, run) {
  const line = appendElement("li", undefined, list, "record " + levelClass(record.level)), {ranks} = record;
  const who = ranks ? `rank${/^r\d+$/.test(ranks) ? "" : "s"} ${ranks.slice(1)}` : record.rank === undefined ? "" : "rank " + record.rank;
  const head = appendElement("span", [record.time && record.time.replace("T", " "), record.level, who].filter(Boolean).join(" "), line, "note");
  if (record.step !== undefined && record.step !== null) {
    const to = appendElement("a", "step " + record.step, head);
    head.insertBefore(document.createTextNode(" "), to);
    to.href = `${addressOf(run, "metrics")}?step=${record.step}`, to.title = "this step in the curves";
  }
  appendElement("pre", record.text || record.message || JSON.stringify(record), line, "mono");
}

const levelClass = level => ({ERROR: "error", CRITICAL: "critical", WARNING: "warning"}[level] || "");

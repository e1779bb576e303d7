// The grid of datapoints: sorted and filtered by the server, a page of rows at a time; what is chosen is the address.
const FIELDS = [["ranks", "0,3-5"], ["steps", "100:200"], ["epochs", "0:2"], ["module", "layers.0"]], LIMIT = 100;
const NAMES = ["ranks", "steps", "epochs", "module", "phase", "sort", "descending", "least", "most", "samples", "offset"];
const PLACES = ["key", "rank", "step", "epoch", "phase", "tensors", "bytes"];
const FIGURES = ["mean", "std", "min", "max", "absmax", "nan", "inf", "zero_share"], FIGURE = new RegExp(`^(${FIGURES.join("|")})\\((.+)\\)$`), MAX_LAYERS = 500;
const LOSS = /(^|[./:_])loss$/;

export async function showGrid({root, base, ask, addressOf, run, link, open, layers}) {
  const place = new URLSearchParams(location.search), chosen = Object.fromEntries(NAMES.map(name => [name, place.get(name) || ""]));
  appendElement("h2", "Datapoints", root);
  const form = appendElement("form", undefined, root, "tools"), told = appendElement("p", undefined, root, "note");
  told.setAttribute("role", "status");
  const addressWith = change => {
    const words = new URLSearchParams(Object.entries({...chosen, offset: "", ...change}).filter(([, value]) => value !== "" && value !== undefined));
    return addressOf(run, "tensors") + (String(words) ? "?" + words : "");
  };
  let found, problem;
  try {
    found = await ask(base + "/pages/datapoints", {...chosen, limit: LIMIT});
  } catch (error) {
    if (error.status !== 400) throw error;
    problem = error;
    found = {columns: PLACES, phases: [], rows: [], total: 0, matching: 0, left_out: 0, has_batches: false, offset: 0};
  }
  fillForm({form, found, chosen, open, addressWith});
  addFigures({form, layers, chosen, open, addressWith});
  if (problem) return void (told.className = "state bad", told.textContent = problem.message + (problem.tryNext ? ": " + problem.tryNext : ""));
  told.textContent = describeCount(found);
  if (!found.rows.length) return;
  fillTable({root, found, chosen, link, addressOf, run, open, addressWith});
  const pager = appendElement("p", undefined, root, "jumps");
  const addJump = (text, offset) => pager.append(link(addressWith({offset: offset ? String(offset) : ""}), text));
  if (found.offset) addJump("First", 0), addJump("Previous", Math.max(found.offset - LIMIT, 0));
  if (found.offset + found.rows.length < found.matching) addJump("Next", found.offset + LIMIT), addJump("Last", Math.floor((found.matching - 1) / LIMIT) * LIMIT);
}

function describeCount(found) {
  const left = found.left_out ? `; ${formatNumber(found.left_out)} more are not sorted: \`tdbg inspect-pages ls\` selects from all` : "";
  if (!found.matching) return "No datapoint matches." + left;
  if (!found.rows.length) return `There are only ${formatNumber(found.matching)} that match.`;
  const of = found.matching === found.total ? `${formatNumber(found.total)} datapoints` : `${formatNumber(found.matching)} that match, of ${formatNumber(found.total)} datapoints`;
  return `${formatNumber(found.offset + 1)} to ${formatNumber(found.offset + found.rows.length)} of ${of}${left}`;
}

function fillForm({form, found, chosen, open, addressWith}) {
  const inputs = {};
  const add = (tag, name, text) => {
    const input = inputs[name] = appendElement(tag, undefined, appendElement("label", text + " ", form));
    input.id = "grid-" + name;
    return input;
  };
  const addChoice = (name, text, options, none) => {
    const select = add("select", name, text);
    for (const option of ["", ...new Set([...options, chosen[name]].filter(Boolean))]) appendElement("option", option || none, select).value = option;
    select.value = chosen[name];
    select.addEventListener("change", () => form.requestSubmit());
  };
  for (const [name, example] of FIELDS) Object.assign(add("input", name, name), {value: chosen[name], placeholder: example});
  if (found.phases.length || chosen.phase) addChoice("phase", "phase", found.phases, "any");
  addChoice("sort", "sort by", found.columns, "order of capture");
  for (const name of ["least", "most"]) Object.assign(add("input", name, name === "least" ? "from" : "to"), {value: chosen[name], inputMode: "decimal", disabled: !chosen.sort, title: "of the column that is sorted by"});
  inputs.sort.addEventListener("change", () => { inputs.least.value = inputs.most.value = ""; });
  if (found.has_batches || chosen.samples) {
    const label = appendElement("label", undefined, form), box = appendElement("input", undefined, label);
    box.type = "checkbox", box.id = "grid-samples", box.checked = chosen.samples === "true";
    label.append(" each sample of a batch");
    box.addEventListener("change", () => open(addressWith({samples: box.checked ? "true" : ""})));
  }
  appendElement("button", "Show", form).type = "submit";
  const loss = found.columns.includes("loss") ? "loss" : found.columns.find(name => LOSS.test(name));
  if (loss) {
    const worst = appendElement("button", "Worst loss first", form);
    worst.type = "button", worst.id = "grid-worst", worst.setAttribute("aria-pressed", String(chosen.sort === loss && chosen.descending === "true"));
    worst.addEventListener("click", () => open(addressWith({sort: loss, descending: "true", least: "", most: ""})));
  }
  form.addEventListener("submit", event => {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
    for (const name of ["steps", "epochs"]) given[name] = given[name].replace(/(\d)\s*-\s*(\d)/g, "$1:$2");  // as ranks are written
    if (!given.sort) given.least = given.most = "";
    const descending = !given.sort ? "" : given.sort === chosen.sort ? chosen.descending : PLACES.includes(given.sort) ? "" : "true";
    open(addressWith({...given, descending}));
  });
}

// A figure of a layer that the server computes to sort by: it is no column until it is asked for.
function addFigures({form, layers, chosen, open, addressWith}) {
  const [, figure = "", path = ""] = FIGURE.exec(chosen.sort) || [];
  const addSelect = (id, text, none, options, value) => {
    const select = appendElement("select", undefined, appendElement("label", text + " ", form));
    for (const option of ["", ...new Set([...options, value].filter(Boolean))]) appendElement("option", option || none, select).value = option;
    select.value = value, select.id = id;
    select.addEventListener("change", () => {
      const isWhole = names.value && paths.value;
      if (isWhole || chosen.sort === `${figure}(${path})`) open(addressWith({sort: isWhole ? `${names.value}(${paths.value})` : "", descending: isWhole ? "true" : "", least: "", most: ""}));
    });
    return select;
  };
  const names = addSelect("grid-figure", "or by", "a figure", FIGURES, figure), paths = addSelect("grid-layer", "of", "a layer", layers.map(one => one.path).slice(0, MAX_LAYERS), path);
}

function fillTable({root, found, chosen, link, addressOf, run, open, addressWith}) {
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll whole"), "datapoints"), names = Object.keys(found.rows[0].numbers);
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  const order = ["key", ...names.filter(name => name === chosen.sort), ...PLACES.slice(1), ...names.filter(name => name !== chosen.sort)];  // what it is sorted by is seen on a narrow screen
  const isText = name => name === "key" || name === "phase";
  for (const name of order) {
    const cell = appendElement("th", undefined, head, isText(name) ? "" : "number"), isSorted = chosen.sort === name, isDown = isSorted && chosen.descending === "true";
    cell.setAttribute("aria-sort", isSorted ? (isDown ? "descending" : "ascending") : "none");
    const button = appendElement("button", name, cell, "sorter");
    button.type = "button", button.id = "sort-" + name, button.title = `sort by ${name}`;
    const isNext = isSorted ? !isDown : names.includes(name);  // of figures the largest come first
    button.addEventListener("click", () => open(addressWith({sort: name, descending: isNext ? "true" : "", ...(isSorted ? {} : {least: "", most: ""})})));
  }
  for (const one of found.rows) {
    const row = appendElement("tr", undefined, body);
    appendElement("td", undefined, row).append(link(`${addressOf(run, "tensors")}?${new URLSearchParams({key: one.key, nth: one.nth})}`, one.key), one.samples === null ? "" : ` (${formatNumber(one.samples)} samples)`);
    for (const name of order.slice(1)) appendElement("td", formatNumber(names.includes(name) ? one.numbers[name] : one[name]), row, isText(name) ? "" : "number");
  }
}

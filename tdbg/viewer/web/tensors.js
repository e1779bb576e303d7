// Captured tensors and saved batches: layers, datapoints, and one datapoint with pictures of its tensors, or two of them and the difference.
const MAX_ROWS = 500;
const NOTHING_CAPTURED = "No tensors were captured in this run: use `tdbg run --capture LAYER`.";

export async function showTensors({root, base, ask, addressOf, run, link, showState}) {
  const place = new URLSearchParams(location.search);
  const {batches} = await ask(base + "/batches");
  if (place.get("batch") !== null) return showBatch({root, base, ask, addressOf, run, link, batches, file: place.get("batch")});
  let found;
  try {
    found = await ask(base + "/pages", {datapoints: true});
  } catch (error) {
    if (!batches.length || error.name === "AbortError") throw error;
    root.replaceChildren();
    listBatches({root, addressOf, run, link, batches});
    return void appendElement("p", error.message, root, "state bad");
  }
  if (!found.datapoints && !batches.length) return showState(root, NOTHING_CAPTURED);
  const list = numberDatapoints(found.list);
  if (place.get("key") !== null) return showDatapoint({root, base, ask, addressOf, run, link, place, list});
  root.replaceChildren();
  if (batches.length) listBatches({root, addressOf, run, link, batches});
  if (!found.datapoints) return appendElement("p", NOTHING_CAPTURED, root, "note");
  appendElement("p", `${found.datapoints} datapoints, ${found.tensors} tensors, ${formatBytes(found.bytes)}`, root, "note");
  for (const problem of found.problems) appendElement("p", problem.text, root, "state bad");
  appendElement("h2", "Layers", root);
  fillRows(appendElement("div", undefined, root, "scroll"), ["path", "dtype", "shapes", "datapoints", "bytes"],
    found.layers.map(one => [one.path, one.dtypes.join(", "), one.shapes.slice(0, 4).map(shape => "[" + shape.join(", ") + "]").join(" "), one.datapoints, one.bytes]));
  appendElement("h2", "Datapoints", root);
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll whole"), "wide");
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  for (const name of ["key", "rank", "step", "epoch", "phase", "tensors", "bytes"]) appendElement("th", name, head);
  for (const one of list.slice(0, MAX_ROWS)) {
    const row = appendElement("tr", undefined, body);
    appendElement("td", undefined, row).append(link(`${addressOf(run, "tensors")}?key=${encodeURIComponent(one.key)}&nth=${one.nth}`, String(one.key)));
    for (const name of ["rank", "step", "epoch", "phase", "tensors", "bytes"]) appendElement("td", formatNumber(one[name]), row);
  }
  if (list.length > MAX_ROWS) appendElement("p", `${list.length - MAX_ROWS} more datapoints are left out.`, root, "note");
}

export const addressOfBatch = (tensors, batch) => `${tensors}?batch=${encodeURIComponent(batch.file)}`;

function listBatches({root, addressOf, run, link, batches}) {
  appendElement("h2", "Batches saved at findings", root);
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll"));
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  for (const name of ["batch", "rank", "bytes", "file"]) appendElement("th", name, head, name === "rank" || name === "bytes" ? "number" : "");
  table.id = "batches";
  for (const batch of batches) {
    const row = appendElement("tr", undefined, body);
    appendElement("td", undefined, row).append(link(addressOfBatch(addressOf(run, "tensors"), batch), "step " + batch.step));
    for (const name of ["rank", "bytes"]) appendElement("td", formatNumber(batch[name]), row, "number");
    appendElement("td", batch.file, row);
  }
}

// One saved batch: each of its tensors with what is not finite in it.
async function showBatch({root, base, ask, addressOf, run, link, batches, file}) {
  const batch = batches.find(one => one.file === file);
  root.replaceChildren();
  appendElement("p", undefined, root).append(link(addressOf(run, "tensors"), "All tensors of this run"));
  if (!batch) return appendElement("p", "There is no such saved batch.", root, "state bad");
  appendElement("h2", `Batch saved at step ${batch.step}` + (batch.rank === null ? "" : `, rank ${batch.rank}`), root);
  appendElement("p", `${run}/${file}, ${formatBytes(batch.bytes)}; \`tdbg inspect-pages\` reads it too`, root, "note");
  for (const one of batch.left_out) appendElement("p", "not saved: " + one, root, "note");
  const details = await ask(base + "/pages/datapoint", {batch: file}), grid = appendElement("div", undefined, root, "tensors");
  await Promise.all(details.tensors.map(tensor => {
    const card = appendElement("section", undefined, grid, "tensor");
    return fillTensor(card, base, ask, {batch: file}, details, tensor.path);
  }));
}

// Each with its number among those of the same key, as the server counts them.
export function numberDatapoints(list) {
  const seen = new Map();
  return list.map(one => {
    const nth = seen.get(String(one.key)) || 0;
    seen.set(String(one.key), nth + 1);
    return {...one, key: String(one.key), nth};
  });
}

// The same datapoint in other epochs, a row of a batch included; where it was captured once, other steps of its rank and phase.
function findSeries(list, one) {
  const ordered = those => those.sort((a, b) => (a.epoch ?? 0) - (b.epoch ?? 0) || (a.step ?? 0) - (b.step ?? 0));
  const same = findSame(list, one.key).filter(other => other.rank === one.rank);
  const steps = list.filter(other => other.rank === one.rank && other.phase === one.phase);
  return ordered(same.length > 1 || !steps.some(other => other.key === one.key) ? same : steps);
}

// All of a key, in the order of the server.
function findSame(list, key) {
  let nth = 0;
  return list.flatMap(one => {
    const rows = (one.keys || []).filter(row => String(row) === key).length;
    return Array.from({length: rows || (one.key === key ? 1 : 0)}, () => ({...one, key, nth: nth++}));
  });
}

const nameOf = one => [`datapoint ${one.key}`, one.epoch === null ? "" : `epoch ${one.epoch}`, one.step === null ? "" : `step ${formatNumber(one.step)}`].filter(Boolean).join(", ");

async function showDatapoint({root, base, ask, addressOf, run, link, place, list}) {
  const find = (key, nth) => findSame(list, key)[Number(nth || 0)];
  const first = find(place.get("key"), place.get("nth"));
  root.replaceChildren();
  appendElement("p", undefined, root).append(link(addressOf(run, "tensors"), "All datapoints"));
  if (!first) return appendElement("p", "There is no such datapoint.", root, "state bad");
  const series = findSeries(list, first), asked = place.get("with") === null ? undefined : find(place.get("with"), place.get("with_nth"));
  const indexOf = one => Math.max(series.findIndex(other => other.key === one.key && other.nth === one.nth), 0);
  const title = appendElement("h2", undefined, root), tools = appendElement("div", undefined, root, "sliders");
  const shown = addSlider(tools, "shown", series, indexOf(first), draw);
  const box = appendElement("input", undefined, appendElement("label", "compare ", tools));
  box.type = "checkbox", box.id = "with-other", box.checked = Boolean(asked), box.disabled = series.length < 2;
  const other = addSlider(tools, "compared with", series, indexOf(asked || first), draw);
  const body = appendElement("div", undefined, root);
  box.addEventListener("change", () => { other.input.disabled = !box.checked; draw(); });
  other.input.disabled = !box.checked;

  let number = 0;
  async function draw() {
    const mine = ++number, one = shown.value, two = box.checked ? other.value : null;
    const words = {key: one.key, nth: one.nth, ...(two ? {with: two.key, with_nth: two.nth} : {})};
    history.replaceState(null, "", location.pathname + "?" + new URLSearchParams(words));
    title.textContent = `rank ${one.rank}: ${nameOf(one)}` + (two ? ` and ${nameOf(two)}` : "");
    const details = await ask(base + "/pages/datapoint", {key: one.key, nth: one.nth});
    if (mine !== number) return;
    body.style.minHeight = body.offsetHeight + "px";  // nothing jumps while pictures come
    body.replaceChildren();
    if (!two) fillScalars(body, details);
    const grid = appendElement("div", undefined, body, two ? "pairs" : "tensors");
    await Promise.all(details.tensors.map(tensor => {
      const card = appendElement("section", undefined, grid, "tensor");
      appendElement("h2", tensor.path, card);
      appendElement("p", `${tensor.dtype} [${tensor.shape.join(", ")}], ${formatBytes(tensor.bytes)}`, card, "note");
      return two ? fillPair(card, base, ask, one, two, tensor.path) : fillTensor(card, base, ask, one, details, tensor.path);
    }));
    if (mine === number) body.style.minHeight = "";
  }
  await draw();
}

// Arrow keys go from one to the next. change: called when another is chosen.
function addSlider(tools, name, series, at, change) {
  const input = appendElement("input", undefined, appendElement("label", name + " ", tools)), told = appendElement("output", undefined, tools, "note");
  input.type = "range", input.min = "0", input.max = String(series.length - 1), input.step = "1", input.value = String(at), input.id = name.replace(" ", "-");
  told.htmlFor = input.id;
  function tell() {
    const text = `${nameOf(series[Number(input.value)])} (${Number(input.value) + 1} of ${series.length})`;
    told.textContent = text, input.setAttribute("aria-valuetext", text);
  }
  input.addEventListener("input", tell);
  input.addEventListener("change", change);
  tell();
  return {input, get value() { return series[Number(input.value)]; }};
}

function fillScalars(body, one) {
  const scalars = Object.entries(one.scalars);
  if (scalars.length) fillRows(appendElement("div", undefined, body, "scroll"), ["figure", "value"], scalars.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]));
}

async function fillTensor(card, base, ask, {key, nth, batch}, details, path) {
  try {
    const tensor = await ask(base + "/pages/picture", {key, nth, batch, path});
    card.replaceChildren();
    showTensor(card, details, tensor);
    const places = tensor.not_finite_at;
    if (places) card.querySelector(".figures").after(appendElement("p", describePlaces(places, tensor.figures.nan + tensor.figures.inf), undefined, "bad"));
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
  }
}

function describePlaces(places, count) {
  const shown = places.map(place => `[${place.join(", ")}]`).join(" ");
  return `Not finite: ${formatNumber(count)}, at ${shown}` + (count > places.length ? ` and ${formatNumber(count - places.length)} more` : "");
}

// Both in one scale of colours, and the difference in one whose white is 0.
async function fillPair(card, base, ask, one, two, path) {
  let pair;
  try {
    pair = await ask(base + "/pages/difference", {key: one.key, nth: one.nth, path, other_key: two.key, other_nth: two.nth});
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
    return;
  }
  if (pair.distance) appendElement("p", tellDistance(pair.distance), card, "distance");
  if (pair.why) return appendElement("p", `No difference is shown: ${pair.why}.`, card, "note");
  const place = appendElement("div", undefined, card, "triple"), previews = [pair.first.preview, pair.second.preview];
  const both = {low: Math.min(...previews.map(one => one.low)), high: Math.max(...previews.map(one => one.high))};
  const {preview} = pair.difference, most = Math.max(-preview.low, preview.high, 0);
  if (preview.said) appendElement("p", preview.said, card, "note");
  const shown = [[nameOf(one), pair.first, one, both], [nameOf(two), pair.second, two, both], ["the second minus the first", pair.difference, one, {low: -most, high: most, diverging: true}]];
  const sides = shown.map(([name]) => {
    const side = appendElement("div", undefined, place);
    appendElement("h3", name, side);
    return appendElement("div", undefined, side);
  });  // all of them are there before one is drawn: a picture is as wide as its place
  shown.forEach(([, tensor, datapoint, scale], at) => new Heat(sides[at], tensor, datapoint, scale));
}

function tellDistance(found) {
  if (!found.differing && !found.reason) return `Equal within rounding: all ${formatNumber(found.total)} values, the largest difference is ${formatNumber(found.apart)}.`;
  const where = found.where && found.where.length ? ` The largest relative error is at [${found.where.join(", ")}]: ${formatNumber(found.a)} became ${formatNumber(found.b)}.` : "";
  return `${formatNumber(found.differing)} of ${formatNumber(found.total)} values differ beyond rounding; the largest difference is ${formatNumber(found.apart)}.${where}${found.reason ? ` ${found.reason}.` : ""}`;
}

function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) bytes /= 1000, at++;
  return (at ? bytes.toPrecision(3) : bytes) + " " + units[at];
}

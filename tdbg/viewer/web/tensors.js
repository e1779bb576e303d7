// Captured tensors and saved batches: layers, datapoints, and one datapoint with pictures of its tensors, or two of them and the difference.
import {showGrid} from "./datapoint_grid.js";
import {showOverlays} from "./overlay.js";
import {showTokens} from "./token_text.js";

const NOTHING_CAPTURED = "No tensors were captured in this run: use `tdbg run --capture LAYER`.";

export async function showTensors({root, base, ask, download, addressOf, run, link, showState, open, stop}) {
  const place = new URLSearchParams(location.search);
  const {batches, left_out} = await ask(base + "/batches");
  if (place.get("batch") !== null) return showBatch({root, base, ask, download, addressOf, run, link, batches, file: place.get("batch")});
  if (place.get("key") !== null) return showDatapoint({root, base, ask, download, addressOf, run, link, place, stop});
  let found;
  try {
    found = await ask(base + "/pages");
  } catch (error) {
    if (!batches.length || error.name === "AbortError") throw error;
    root.replaceChildren();
    listBatches({root, addressOf, run, link, batches, left_out});
    return void appendElement("p", error.message, root, "state bad");
  }
  if (!found.datapoints && !batches.length) return showState(root, NOTHING_CAPTURED);
  root.replaceChildren();
  if (batches.length) listBatches({root, addressOf, run, link, batches, left_out});
  if (!found.datapoints) return appendElement("p", NOTHING_CAPTURED, root, "note");
  for (const problem of found.problems) appendElement("p", problem.text, root, "state bad");
  await showGrid({root, base, ask, addressOf, run, link, open, layers: found.layers});
  appendElement("h2", "Layers", root);
  appendElement("p", `${formatNumber(found.tensors)} tensors, ${formatBytes(found.bytes)}`, root, "note");
  fillRows(appendElement("div", undefined, root, "scroll"), ["path", "dtype", "shapes", "datapoints", "bytes"],
    found.layers.map(one => [one.path, one.dtypes.join(", "), one.shapes.slice(0, 4).map(shape => "[" + shape.join(", ") + "]").join(" "), one.datapoints, one.bytes]));
}

export const addressOfBatch = (tensors, batch) => `${tensors}?batch=${encodeURIComponent(batch.file)}`;

function listBatches({root, addressOf, run, link, batches, left_out}) {
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
  if (left_out) appendElement("p", `${formatNumber(left_out)} more saved batches are not listed: they lie beside these in ${run}.`, root, "note");
}

// One saved batch: each of its tensors with what is not finite in it.
async function showBatch({root, base, ask, download, addressOf, run, link, batches, file}) {
  const batch = batches.find(one => one.file === file);
  root.replaceChildren();
  appendElement("p", undefined, root).append(link(addressOf(run, "tensors"), "All tensors of this run"));
  const details = await ask(base + "/pages/datapoint", {batch: file});
  appendElement("h2", batch ? `Batch saved at step ${batch.step}` + (batch.rank === null ? "" : `, rank ${batch.rank}`) : "Saved batch", root);
  appendElement("p", `${run}/${file}${batch ? ", " + formatBytes(batch.bytes) : ""}; \`tdbg inspect-pages\` reads it too`, root, "note");
  for (const one of batch ? batch.left_out : []) appendElement("p", "not saved: " + one, root, "note");
  await fillTensors({parent: root, base, ask, download, where: {batch: file}, details});
}

const nameOf = one => [`datapoint ${one.key}`, one.epoch === null ? "" : `epoch ${one.epoch}`, one.step === null ? "" : `step ${formatNumber(one.step)}`].filter(Boolean).join(", ");

async function showDatapoint({root, base, ask, download, addressOf, run, link, place, stop}) {
  root.replaceChildren();
  appendElement("p", undefined, root).append(link(addressOf(run, "tensors"), "All datapoints"));
  let found;
  try {
    found = await ask(base + "/pages/series", {key: place.get("key"), nth: place.get("nth") || 0});
  } catch (error) {
    if (error.status !== 404) throw error;
    return appendElement("p", "There is no such datapoint.", root, "state bad");
  }
  const series = found.rows, first = series[found.at], asked = series.find(one => one.key === place.get("with") && one.nth === Number(place.get("with_nth") || 0));
  const indexOf = one => Math.max(series.findIndex(other => other.key === one.key && other.nth === one.nth), 0);
  const title = appendElement("h2", undefined, root), tools = appendElement("div", undefined, root, "sliders");
  const shown = addSlider(tools, "shown", series, indexOf(first), draw);
  const box = appendElement("input", undefined, appendElement("label", "compare ", tools));
  box.type = "checkbox", box.id = "with-other", box.checked = Boolean(asked), box.disabled = series.length < 2;
  const other = addSlider(tools, "compared with", series, indexOf(asked || first), draw);
  if (found.total > series.length) appendElement("p", `The ${formatNumber(series.length)} nearest of ${formatNumber(found.total)} are on the sliders.`, root, "note");
  const body = appendElement("div", undefined, root);
  box.addEventListener("change", () => { other.input.disabled = !box.checked; draw(); });
  other.input.disabled = !box.checked;

  let drawing = new AbortController(), isSought = Boolean(place.get("module"));
  stop.addEventListener("abort", () => drawing.abort());
  function draw() {
    drawing.abort();  // what is still on its way is of another datapoint
    const {signal} = drawing = new AbortController();
    return drawOne((path, query) => ask(path, query, signal), signal);
  }
  async function drawOne(ask, signal) {
    const one = shown.value, two = box.checked ? other.value : null;
    const words = {key: one.key, nth: one.nth, ...(two ? {with: two.key, with_nth: two.nth} : {}), ...(place.get("module") ? {module: place.get("module")} : {})};
    history.replaceState(null, "", location.pathname + "?" + new URLSearchParams(words));
    title.textContent = `rank ${one.rank}: ${nameOf(one)}` + (two ? ` and ${nameOf(two)}` : "");
    let details;
    try {
      details = await ask(base + "/pages/datapoint", {key: one.key, nth: one.nth});
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(appendElement("p", error.message, undefined, "state bad"));
      return;
    }
    if (signal.aborted) return;
    body.style.minHeight = body.offsetHeight + "px";  // nothing jumps while pictures come
    body.replaceChildren();
    if (!two) fillScalars(body, details);
    details.key = one.key;  // as text: a long number was rounded on its way
    const where = {key: one.key, nth: one.nth};
    if (two) await fillPairs({parent: body, base, ask, details, one, two});
    else await fillTensors({parent: body, base, ask, download, where, details});
    if (signal.aborted) return;
    body.style.minHeight = "";
    markModule(body, place.get("module"), isSought);
    isSought = false;
  }
  await draw();
}

// Frames the tensors of a module that the address names; isSought: the first of them is scrolled to.
function markModule(body, module, isSought) {
  const cards = module ? [...body.querySelectorAll(".tensor[data-path]")].filter(({dataset: {path}}) => path === module || [":", ".", "/"].some(sign => path.startsWith(module + sign))) : [];
  for (const card of cards) card.classList.add("sought");
  if (isSought && cards.length) cards[0].scrollIntoView({block: "center"});
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

// The text, maps over pictures, and each tensor.
async function fillTensors({parent, base, ask, download, where, details}) {
  const text = appendElement("div", undefined, parent), grid = appendElement("div", undefined, parent, "tensors"), over = appendElement("div", undefined, grid, "overlays");
  await Promise.all([
    details.tokens.length ? showTokens({parent: text, base, ask, where}) : null,
    showOverlays({parent: over, base, ask, where, tensors: details.tensors}),
    ...details.tensors.map(tensor => {
      const card = appendElement("section", undefined, grid, "tensor");
      tellTensor(card, tensor);
      return fillTensor({card, base, ask, download, where, details, path: tensor.path});
    }),
  ]);
}

// Text and overlays of both, each tensor of both with the difference.
async function fillPairs({parent, base, ask, details, one, two}) {
  const both = appendElement("div", undefined, parent, "pair both"), grid = appendElement("div", undefined, parent, "pairs");
  const sides = [one, two].map(side => {
    const place = appendElement("section", undefined, both);
    appendElement("h2", nameOf(side), place);
    return place;
  });
  await Promise.all([
    fillSides({both, sides, base, ask, one, two}),
    ...details.tensors.map(tensor => {
      const card = appendElement("section", undefined, grid, "tensor");
      tellTensor(card, tensor);
      return fillPair(card, base, ask, one, two, tensor.path);
    }),
  ]);
}

// What a datapoint shows beside its tensors, for each of two.
async function fillSides({both, sides, base, ask, one, two}) {
  await Promise.all([one, two].map(async ({key, nth}, at) => {
    const where = {key, nth};
    try {
      const {tokens, tensors} = await ask(base + "/pages/datapoint", where);
      if (tokens.length) await showTokens({parent: sides[at], base, ask, where});
      await showOverlays({parent: sides[at], base, ask, where, tensors});
    } catch (error) {
      if (error.name !== "AbortError") appendElement("p", error.message, sides[at], "state bad");
    }
  }));
  if (sides.every(side => side.children.length < 2)) both.remove();
}

function tellTensor(card, tensor) {
  card.dataset.path = tensor.path;
  appendElement("h2", tensor.path, card);
  appendElement("p", `${tensor.dtype} [${tensor.shape.join(", ")}], ${formatBytes(tensor.bytes)}`, card, "note");
}

async function fillTensor({card, base, ask, download, where, details, path}) {
  try {
    const tensor = await ask(base + "/pages/picture", {...where, path});
    card.replaceChildren();
    showTensor(card, details, tensor, words => fetchPart({place: card, ask, address: base + "/pages/picture", query: {...where, path, ...words}}));
    const places = tensor.not_finite_at;
    if (places) card.querySelector(".figures").after(appendElement("p", describePlaces(places, tensor.figures.nan + tensor.figures.inf), undefined, "bad"));
    addSlice({card, base, ask, download, where, path, shape: tensor.shape});
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
  }
}

// The picture of a part; undefined where there is none, and a line at its place says why.
async function fetchPart({place, ask, address, query}) {
  const told = place.querySelector(".refused") || appendElement("p", undefined, place, "bad refused");
  try {
    const found = await ask(address, query);
    told.textContent = found.why || "";
    return (found.difference || found).preview;
  } catch (error) {
    if (error.name !== "AbortError") told.textContent = error.message;
  }
}

// Values of a slice as JSON, and its bytes as a file.
function addSlice({card, base, ask, download, where, path, shape}) {
  const box = appendElement("details", undefined, card, "slice");
  appendElement("summary", "Values of a slice", box);
  const form = appendElement("form", undefined, box, "tools"), input = appendElement("input", undefined, appendElement("label", "slice ", form));
  input.value = shape.map((size, at) => at < shape.length - 2 ? "0" : `0:${Math.min(size, 8)}`).join(","), input.placeholder = "0,:,3:5";
  appendElement("button", "Show", form).type = "submit";
  const save = appendElement("button", "Save the bytes", form), text = appendElement("pre", undefined, box, "mono");
  save.type = "button", text.setAttribute("aria-live", "polite"), text.tabIndex = 0, text.hidden = true;
  const guard = async action => {
    text.hidden = false;
    try {
      await action();
    } catch (error) {
      if (error.name !== "AbortError") text.textContent = error.message + (error.tryNext ? ": " + error.tryNext : "");
    }
  };
  form.addEventListener("submit", event => {
    event.preventDefault();
    guard(async () => {
      const found = await ask(base + "/pages/datapoint", {...where, path, slice: input.value});
      text.textContent = JSON.stringify({slice: found.slice, shape: found.slice_shape, dtype: found.dtype, ...(found.values ? {values: found.values} : {figures: found.figures, values: "more than are shown: save the bytes"})}, null, 1).replace(/\n\s+(?=-?[\d.]|"-?(?:nan|inf))/g, " ").replace(/\n\s*\]/g, " ]");
    });
  });
  save.addEventListener("click", () => guard(async () => { await download(base + "/pages/raw", {...where, path, slice: input.value}); text.textContent = "Saved."; }));
}

function describePlaces(places, count) {
  const shown = places.map(place => `[${place.join(", ")}]`).join(" ");
  return `Not finite: ${formatNumber(count)}, at ${shown}` + (count > places.length ? ` and ${formatNumber(count - places.length)} more` : "");
}

// Both in one scale of colours, and the difference in one whose white is 0. Of large maps the server sends coarse pictures,
// and the part that is zoomed into, of the difference too.
async function fillPair(card, base, ask, one, two, path) {
  let pair;
  try {
    pair = await ask(base + "/pages/difference", {key: one.key, nth: one.nth, path, other_key: two.key, other_nth: two.nth});
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
    return;
  }
  if (pair.distance) appendElement("p", tellDistance(pair.distance), card, "distance");
  fillHistograms(card, [one, two], [pair.first, pair.second]);
  if (pair.why) return appendElement("p", `No difference is shown: ${pair.why}.`, card, "note");
  const place = appendElement("div", undefined, card, "triple"), previews = [pair.first.preview, pair.second.preview];
  const both = {low: Math.min(...previews.map(one => one.low)), high: Math.max(...previews.map(one => one.high))};
  const shown = [[nameOf(one), pair.first, one, both], [nameOf(two), pair.second, two, both], ["the second minus the first", pair.difference, one, {diverging: true}]];
  const sides = shown.map(([name]) => {
    const side = appendElement("div", undefined, place);
    appendElement("h3", name, side);
    return appendElement("div", undefined, side);
  });  // all of them are there before one is drawn: a picture is as wide as its place
  const heats = shown.map(([, tensor, datapoint, scale], at) => new Heat(sides[at], {path, ...tensor}, datapoint, scale, at < 2 ? fetchSide(at) : fetchGap));
  for (const heat of heats) heat.onChoose = start => { for (const other of heats) if (other !== heat) other.choose(start, true); };

  function fetchSide(at) {
    const {key, nth} = [one, two][at];
    return async words => {
      const found = await fetchPart({place: sides[at].parentElement, ask, address: base + "/pages/picture", query: {key, nth, path, ...words}});
      if (found) widenScale(found);
      return found;
    };
  }
  function widenScale(found) {  // means of many values are nearer to each other than these are
    if (found.low >= both.low && found.high <= both.high) return;
    both.low = Math.min(both.low, found.low), both.high = Math.max(both.high, found.high);
    for (const heat of heats.slice(0, 2)) heat.rescale();
  }
  function fetchGap(words) {
    return fetchPart({place: sides[2].parentElement, ask, address: base + "/pages/difference", query: {key: one.key, nth: one.nth, path, other_key: two.key, other_nth: two.nth, ...words}});
  }
}

// The values of both as histograms, each from its least to its most.
function fillHistograms(card, datapoints, sides) {
  if (!sides.every(side => side && side.bars)) return;
  const place = appendElement("div", undefined, card, "pair histograms");
  sides.forEach((side, at) => {
    const part = appendElement("div", undefined, place), {mean, std} = side.figures;
    appendElement("h3", nameOf(datapoints[at]), part);
    appendElement("p", `mean ${formatNumber(mean)}, std ${formatNumber(std)}`, part, "note");
    histogram(part, side);
  });
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

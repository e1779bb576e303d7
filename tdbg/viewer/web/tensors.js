// Captured tensors: layers, datapoints, and one datapoint with pictures of its tensors drawn by tensor.js.
const MAX_ROWS = 500;

export async function showTensors({root, base, ask, addressOf, run, link, showState}) {
  const place = new URLSearchParams(location.search), key = place.get("key");
  if (key !== null) return showDatapoint({root, base, ask, addressOf, run, link, key, nth: Number(place.get("nth") || 0)});
  const found = await ask(base + "/pages", {datapoints: true});
  if (!found.datapoints) return showState(root, "Nothing was captured in this run: `tdbg run --capture LAYER` does.");
  root.replaceChildren();
  appendElement("p", `${found.datapoints} datapoints, ${found.tensors} tensors, ${formatBytes(found.bytes)}`, root, "note");
  for (const problem of found.problems) appendElement("p", problem.text, root, "state bad");
  appendElement("h2", "Layers", root);
  fillRows(appendElement("div", undefined, root, "scroll"), ["path", "dtype", "shapes", "datapoints", "bytes"],
    found.layers.map(one => [one.path, one.dtypes.join(", "), one.shapes.slice(0, 4).map(shape => "[" + shape.join(", ") + "]").join(" "), one.datapoints, one.bytes]));
  appendElement("h2", "Datapoints", root);
  const table = appendElement("table", undefined, appendElement("div", undefined, root, "scroll whole"), "wide");
  const head = appendElement("tr", undefined, appendElement("thead", undefined, table)), body = appendElement("tbody", undefined, table);
  for (const name of ["key", "rank", "step", "epoch", "phase", "tensors", "bytes"]) appendElement("th", name, head);
  const seen = new Map();
  for (const one of found.list.slice(0, MAX_ROWS)) {
    const nth = seen.get(one.key) || 0, row = appendElement("tr", undefined, body);
    seen.set(one.key, nth + 1);
    appendElement("td", undefined, row).append(link(`${addressOf(run, "tensors")}?key=${encodeURIComponent(one.key)}&nth=${nth}`, String(one.key)));
    for (const name of ["rank", "step", "epoch", "phase", "tensors", "bytes"]) appendElement("td", formatNumber(one[name]), row);
  }
  if (found.list.length > MAX_ROWS) appendElement("p", `${found.list.length - MAX_ROWS} more datapoints are left out.`, root, "note");
}

async function showDatapoint({root, base, ask, addressOf, run, link, key, nth}) {
  const one = await ask(base + "/pages/datapoint", {key, nth});
  root.replaceChildren();
  appendElement("p", undefined, root).append(link(addressOf(run, "tensors"), "All datapoints"));
  appendElement("h2", `${one.key}: rank ${one.rank}, step ${formatNumber(one.step)}`, root);
  const scalars = Object.entries(one.scalars);
  if (scalars.length) fillRows(appendElement("div", undefined, root, "scroll"), ["figure", "value"], scalars.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]));
  const grid = appendElement("div", undefined, root, "tensors");
  for (const tensor of one.tensors) {
    const card = appendElement("section", undefined, grid, "tensor");
    appendElement("h2", tensor.path, card);
    appendElement("p", `${tensor.dtype} [${tensor.shape.join(", ")}], ${formatBytes(tensor.bytes)}`, card, "note");
    fillTensor(card, base, ask, key, nth, one, tensor.path);
  }
}

async function fillTensor(card, base, ask, key, nth, one, path) {
  let tensor;
  try {
    tensor = await ask(base + "/pages/picture", {key, nth, path});
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
    return;
  }
  card.replaceChildren();
  showTensor(card, one, tensor);
}

function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) bytes /= 1000, at++;
  return (at ? bytes.toPrecision(3) : bytes) + " " + units[at];
}

// The page that `tdbg inspect-pages html` writes: datapoints and layers beside the tensor that tensor.js shows.
class Page {
  constructor(data) {
    this.data = data; this.at = 0; this.path = null;
    this.search = document.getElementById("search"); this.detail = document.getElementById("detail");
    document.getElementById("summary").textContent = data.summary;
    this.search.addEventListener("input", () => this.list());
    document.getElementById("theme").addEventListener("click", () => this.turn());
    const first = data.datapoints[0];
    if (first && first.tensors.length) this.path = first.tensors[0].path;
    this.list(); this.show();
  }

  turn() {
    const root = document.documentElement, dark = root.getAttribute("data-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.setAttribute("data-theme", dark === "dark" ? "light" : "dark"); this.show();
  }

  // A datapoint fits if its key does, or the path of one of its tensors; a layer fits if its path does, or the key.
  list() {
    const search = this.search.value.trim(), {datapoints} = this.data;
    const fits = (datapoint, path) => matches(`${datapoint.key} ${path}`, search);
    const paths = datapoint => [...datapoint.tensors.map(tensor => tensor.path), ""];
    const found = datapoints.map((datapoint, at) => at).filter(at => paths(datapoints[at]).some(path => fits(datapoints[at], path)));
    this.fill("datapoints", found.map(at => [datapoints[at].key, describe(datapoints[at]), at === this.at, () => this.choose(at, this.path)]));
    document.getElementById("datapoint-count").textContent = `${found.length} of ${datapoints.length}`;
    const here = datapoints[this.at], tensors = here ? here.tensors.filter(tensor => fits(here, tensor.path)) : [];
    const rows = tensors.map(tensor => [tensor.path, `${tensor.dtype} [${tensor.shape.join(", ")}]`, tensor.path === this.path, () => this.choose(this.at, tensor.path)]);
    if (here && here.scalars.length) rows.push(["figures", `${here.scalars.length}`, this.path === null, () => this.choose(this.at, null)]);
    this.fill("layers", rows);
    document.getElementById("layer-count").textContent = here ? `${tensors.length} of ${here.tensors.length}` : "";
  }

  fill(id, rows) {
    const list = document.getElementById(id);
    list.textContent = "";
    for (const [name, more, current, action] of rows) {
      const button = element("button", String(name), element("li", null, list), {type: "button", "aria-current": String(current)});
      button.appendChild(document.createTextNode(" ")); element("small", more, button);
      button.addEventListener("click", action);
    }
  }

  choose(at, path) { this.at = at; this.path = path; this.list(); this.show(); }

  show() {
    this.detail.textContent = "";
    const datapoint = this.data.datapoints[this.at];
    if (!datapoint) { element("p", "nothing was captured", this.detail); return; }
    const tensor = datapoint.tensors.find(one => one.path === this.path);
    if (tensor) this.heat = showTensor(this.detail, datapoint, tensor);
    else showScalars(this.detail, datapoint);
  }
}

if (typeof document !== "undefined") globalThis.page = new Page(JSON.parse(document.getElementById("data").textContent));

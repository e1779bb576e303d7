"use strict";
// One tensor: its figures, histogram and values as pictures; for the file and the viewer.
// All text that came out of a file goes through textContent.

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const BLUE_RED = [[33, 102, 172], [103, 169, 207], [209, 229, 240], [247, 247, 247], [253, 219, 199], [239, 138, 98], [178, 24, 43]];
const NAN = [255, 0, 255], PLUS = [255, 128, 0], MINUS = [0, 255, 255];

// numbers

function bytesOf(base64) {
  const text = atob(base64), found = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) found[at] = text.charCodeAt(at);
  return found;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24;
}

// The values of a preview as numbers: "f4" and "raw" as they are, "f2" times a scale, "u1" as steps from low to high.
function decode(preview) {
  const bytes = bytesOf(preview.data), view = new DataView(bytes.buffer);
  if (preview.kind === "f4") return Float32Array.from({length: bytes.length / 4}, (_, at) => view.getFloat32(4 * at, true));
  if (preview.kind === "f2") return Float32Array.from({length: bytes.length / 2}, (_, at) => half(view.getUint16(2 * at, true)) * preview.scale);
  if (preview.kind === "raw") return Float32Array.from(bytes);
  const special = {253: -Infinity, 254: Infinity, 255: NaN}, step = (preview.high - preview.low) / 252;
  return Float32Array.from(bytes, code => code in special ? special[code] : preview.low + code * step);
}

function shown(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return Number.isFinite(value) ? String(Number(value.toPrecision(5))) : String(value);
}

// diverging: white is 0, whatever the values are.
function palette(low, high, diverging) {
  const both = diverging || low < 0 && high > 0, stops = both ? BLUE_RED : VIRIDIS;
  if (both) { high = Math.max(-low, high); low = -high; }
  const table = Array.from({length: 256}, (_, step) => {
    const at = step / 255 * (stops.length - 1), first = Math.min(Math.floor(at), stops.length - 2);
    return stops[first].map((from, part) => Math.round(from + (stops[first + 1][part] - from) * (at - first)));
  });
  return value => {
    if (Number.isNaN(value)) return NAN;
    if (!Number.isFinite(value)) return value > 0 ? PLUS : MINUS;
    const share = high > low ? (value - low) / (high - low) : 0.5;
    return table[Math.min(Math.max(Math.round(share * 255), 0), 255)];
  };
}

// names

function matches(text, search) {
  const lower = text.toLowerCase();
  return search.toLowerCase().split(/\s+/).every(word => lower.includes(word));
}

function planeName(plane, shape) {
  const leading = shape.slice(0, -2), found = [];
  for (let at = leading.length - 1; at >= 0; at--) { found.unshift(plane % leading[at]); plane = Math.floor(plane / leading[at]); }
  return found;
}

// What stands at a cell of an axis: its place, or the places that it is the mean of, and their words.
function place(cell, block, size, words) {
  const first = cell * block, last = Math.min(first + block, size) - 1;
  const text = first === last ? `${first}` : `${first}..${last}`;
  return words ? `${text} ${JSON.stringify(words.slice(first, last + 1).join(" "))}` : text;
}

function wordsFor(datapoint, size) {
  const found = (datapoint.tokens || []).find(one => one.words.length === size);
  return found ? found.words : null;
}

// Tiles side by side, as near to a square as they come.
function gridOf(planes, high, wide) {
  const columns = Math.min(Math.max(Math.round(Math.sqrt(planes * high / wide)), 1), planes);
  return {columns, rows: Math.ceil(planes / columns)};
}

function describe(datapoint) {
  const words = [`rank ${datapoint.rank}`, `step ${datapoint.step}`];
  if (datapoint.epoch !== null) words.push(`epoch ${datapoint.epoch}`);
  if (datapoint.phase) words.push(datapoint.phase);
  return words.join(", ");
}

// the page

function element(name, text, parent, attributes) {
  const found = document.createElement(name);
  if (text !== undefined && text !== null) found.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) found.setAttribute(key, value);
  if (parent) parent.appendChild(found);
  return found;
}

class Heat {
  // A canvas of cells. Wheel and buttons zoom, dragging moves; words stand at the axes where there is room for them.
  // scale: {low, high, diverging} of the colours, shared with another picture; else that of the values.
  constructor(parent, tensor, datapoint, scale) {
    const preview = tensor.preview;
    this.tensor = tensor; this.preview = preview; this.values = decode(preview);
    [this.planes, this.high, this.wide] = preview.shape;
    const [, high, wide] = preview.whole;
    this.rowWords = wordsFor(datapoint, high); this.columnWords = wordsFor(datapoint, wide);
    const finite = this.values.filter(Number.isFinite);
    this.low = finite.reduce((a, b) => Math.min(a, b), Infinity); this.top = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!finite.length) { this.low = 0; this.top = 0; }
    if (scale) { this.low = scale.low; this.top = scale.high; }
    this.colour = palette(this.low, this.top, Boolean(scale && scale.diverging));
    this.plane = this.planes > 1 ? -1 : 0; this.image = preview.image; this.pinned = null;
    this.build(parent);
    this.reset();
  }

  build(parent) {
    const tools = element("div", null, parent, {class: "tools"});
    if (this.planes > 1) {
      const select = element("select", null, tools, {"aria-label": "plane"});
      element("option", "all side by side", select, {value: "-1"});
      for (let plane = 0; plane < this.planes; plane++) element("option", `[${planeName(plane, this.tensor.shape).join(", ")}]`, select, {value: String(plane)});
      select.addEventListener("change", () => { this.plane = Number(select.value); this.image = false; this.reset(); });
      this.select = select;
    }
    if (this.preview.image) this.button(tools, "image or channels", () => {
      this.image = !this.image; this.plane = -1; this.select.value = "-1"; this.reset();
    });
    this.button(tools, "+", () => this.zoomBy(1.5));
    this.button(tools, "\u2212", () => this.zoomBy(1 / 1.5));
    this.button(tools, "fit", () => this.reset());
    this.canvas = element("canvas", null, parent, {class: "map", tabindex: "0"});
    this.readout = element("p", "move over the picture for values", parent, {class: "readout"});
    this.row = element("div", null, parent);
    element("p", `colours from ${shown(this.low)} to ${shown(this.top)}; magenta: nan, orange: inf, cyan: -inf`, parent, {class: "note"});
    this.canvas.addEventListener("mousemove", event => this.move(event));
    this.canvas.addEventListener("mousedown", event => { this.drag = [event.offsetX, event.offsetY]; this.dragged = false; });
    this.canvas.addEventListener("mouseup", () => { this.drag = null; });
    this.canvas.addEventListener("mouseleave", () => { this.drag = null; });
    this.canvas.addEventListener("click", event => { if (!this.dragged) this.pin(this.cellAt(event.offsetX, event.offsetY)); });
    this.canvas.addEventListener("wheel", event => { event.preventDefault(); this.zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY); });
  }

  button(parent, text, action) { element("button", text, parent, {type: "button"}).addEventListener("click", action); }

  get size() {  // of the picture, in cells
    if (this.plane >= 0) return [this.wide, this.high];
    const {columns, rows} = gridOf(this.tiles, this.high, this.wide);
    return [columns * (this.wide + 1) - 1, rows * (this.high + 1) - 1];
  }

  get tiles() { return this.image ? this.planes / 3 : this.planes; }  // an image is three planes

  reset() {
    const [wide, high] = this.size, labelled = this.plane >= 0 && (this.rowWords || this.columnWords);
    this.left = labelled && this.rowWords ? 96 : 0; this.above = labelled && this.columnWords ? 96 : 0;
    const room = Math.max((this.canvas.parentNode.clientWidth || 900) - this.left - 40, 200);
    this.zoom = Math.max(Math.min(room / wide, 640 / high, 32), 0.25);
    this.canvas.width = Math.ceil(Math.min(wide * this.zoom, room)) + this.left;
    this.canvas.height = Math.ceil(Math.min(high * this.zoom, 640)) + this.above;
    this.x = this.y = 0; this.picture = null; this.row.textContent = "";
    this.draw();
  }

  zoomBy(factor, x, y) {  // what lies below the pointer stays there
    const at = [x === undefined ? this.canvas.width / 2 : Math.max(x, this.left), y === undefined ? this.canvas.height / 2 : Math.max(y, this.above)];
    const zoom = Math.min(Math.max(this.zoom * factor, 0.25), 48), ratio = zoom / this.zoom;
    this.x = at[0] - this.left - (at[0] - this.left - this.x) * ratio;
    this.y = at[1] - this.above - (at[1] - this.above - this.y) * ratio;
    this.zoom = zoom; this.draw();
  }

  value(plane, row, column) { return this.values[(plane * this.high + row) * this.wide + column]; }

  pixels() {  // the picture, a pixel a cell
    const [wide, high] = this.size, data = new Uint8ClampedArray(4 * wide * high);
    for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
      const cell = this.cell(x, y), at = 4 * (y * wide + x);
      if (!cell) continue;
      const [plane, row, column] = cell;
      const rgb = this.image ? this.mix([0, 1, 2].map(channel => this.value(plane + channel, row, column))) : this.colour(this.value(plane, row, column));
      data[at] = rgb[0]; data[at + 1] = rgb[1]; data[at + 2] = rgb[2]; data[at + 3] = 255;
    }
    return {data, wide, high};
  }

  mix(values) {  // the colour of a pixel; one that is not finite has the colour of that
    const odd = values.find(value => !Number.isFinite(value));
    return odd === undefined ? values.map(value => this.level(value)) : this.colour(odd);
  }

  level(value) {
    if (this.preview.kind === "raw") return value;
    const inside = this.low >= 0 && this.top <= 1, low = inside ? 0 : this.low, top = inside ? 1 : this.top;
    return 255 * (value - low) / ((top - low) || 1);
  }

  cell(x, y) {  // [plane, row, column] of a cell of the picture; null between tiles
    const [wide, high] = this.size;
    if (x < 0 || y < 0 || x >= wide || y >= high) return null;
    if (this.plane >= 0) return [this.plane, y, x];
    const {columns} = gridOf(this.tiles, this.high, this.wide);
    const column = x % (this.wide + 1), row = y % (this.high + 1);
    const tile = Math.floor(y / (this.high + 1)) * columns + Math.floor(x / (this.wide + 1));
    if (column === this.wide || row === this.high || tile >= this.tiles) return null;
    return [this.image ? 3 * tile : tile, row, column];
  }

  cellAt(x, y) { return this.cell(Math.floor((x - this.left - this.x) / this.zoom), Math.floor((y - this.above - this.y) / this.zoom)); }

  draw() {
    const context = this.canvas.getContext("2d");
    if (!context) return;
    if (!this.picture) {
      const {data, wide, high} = this.pixels();
      this.picture = document.createElement("canvas");
      this.picture.width = wide; this.picture.height = high;
      const inner = this.picture.getContext("2d"), image = inner.createImageData(wide, high);
      image.data.set(data); inner.putImageData(image, 0, 0);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.save(); context.beginPath();
    context.rect(this.left, this.above, this.canvas.width - this.left, this.canvas.height - this.above); context.clip();
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, this.left + this.x, this.above + this.y, this.picture.width * this.zoom, this.picture.height * this.zoom);
    context.restore();
    this.label(context);
  }

  label(context) {  // words at the axes: each one where they fit, else every second, fourth ...
    if (!this.left && !this.above) return;
    const step = Math.max(Math.ceil(11 / this.zoom), 1), [, blockHigh, blockWide] = this.preview.block;
    context.font = "10px sans-serif"; context.textBaseline = "middle"; context.textAlign = "right";
    context.fillStyle = getComputedStyle(document.body).color;
    const word = (words, cell, block) => (words[cell * block] || "").slice(0, 16);
    for (let row = 0; this.left && row < this.high; row += step) {
      const y = this.above + this.y + (row + 0.5) * this.zoom;
      if (y > this.above && y < this.canvas.height) context.fillText(word(this.rowWords, row, blockHigh), this.left - 4, y);
    }
    context.textAlign = "left";
    for (let column = 0; this.above && column < this.wide; column += step) {
      const x = this.left + this.x + (column + 0.5) * this.zoom;
      if (x <= this.left || x >= this.canvas.width) continue;
      context.save(); context.translate(x, this.above - 4); context.rotate(-Math.PI / 2);
      context.fillText(word(this.columnWords, column, blockWide), 0, 0); context.restore();
    }
  }

  move(event) {
    if (this.drag) {
      this.x += event.offsetX - this.drag[0]; this.y += event.offsetY - this.drag[1];
      this.drag = [event.offsetX, event.offsetY]; this.dragged = true; this.draw();
    }
    const cell = this.cellAt(event.offsetX, event.offsetY);
    this.readout.textContent = cell ? this.told(cell) : "";
  }

  told([plane, row, column]) {
    const [, blockHigh, blockWide] = this.preview.block, [, high, wide] = this.preview.whole;
    const cell = [place(row, blockHigh, high, this.rowWords), place(column, blockWide, wide, this.columnWords)];
    if (this.image) {
      const which = this.tiles > 1 ? [planeName(plane, this.tensor.shape)[0], "0..2"] : [];
      return `[${[...which, ...cell].join(", ")}] = ${[0, 1, 2].map(channel => shown(this.value(plane + channel, row, column))).join(", ")}`;
    }
    const at = [...planeName(plane, this.tensor.shape), ...cell].slice(-Math.max(this.tensor.shape.length, 1)).join(", ");
    const about = blockHigh * blockWide > 1 ? "mean " : this.preview.exact ? "" : "\u2248 ";
    return `[${at}] = ${about}${shown(this.value(plane, row, column))}`;
  }

  pin(cell) {  // the largest values of one row: of attention, where a token looks
    this.row.textContent = "";
    if (!cell || this.image || this.wide < 2) return;
    const [plane, row] = cell, [, blockHigh, blockWide] = this.preview.block, [, high, wide] = this.preview.whole;
    const values = Array.from({length: this.wide}, (_, column) => [this.value(plane, row, column), column]);
    values.sort((a, b) => (b[0] - a[0]) || 0);
    element("p", `largest in row ${place(row, blockHigh, high, this.rowWords)}:`, this.row, {class: "note"});
    const table = element("table", null, this.row);
    for (const [value, column] of values.slice(0, 10)) {
      const line = element("tr", null, table);
      element("th", place(column, blockWide, wide, this.columnWords), line);
      element("td", shown(value), line);
    }
  }
}

function histogram(parent, tensor) {
  const canvas = element("canvas", null, parent), readout = element("p", `histogram from ${shown(tensor.low)} to ${shown(tensor.high)}`, parent, {class: "readout soft"});
  const bars = tensor.bars, width = 10, top = Math.max(...bars, 1);
  canvas.width = bars.length * width; canvas.height = 90;
  const context = canvas.getContext("2d");
  if (context) {
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bar") || "#5a8fc4";
    bars.forEach((count, at) => { const high = count ? Math.max(88 * count / top, 1) : 0; context.fillRect(at * width, 90 - high, width - 1, high); });
  }
  canvas.addEventListener("mousemove", event => {
    const at = Math.floor(event.offsetX / width), step = (tensor.high - tensor.low) / bars.length;
    if (bars[at] !== undefined) readout.textContent = `${shown(tensor.low + at * step)} to ${shown(tensor.low + (at + 1) * step)}: ${bars[at]} values`;
  });
}

function showTensor(parent, datapoint, tensor) {
  element("h2", tensor.path, parent);
  element("p", `${tensor.dtype} [${tensor.shape.join(", ")}], datapoint ${datapoint.key}, ${describe(datapoint)}`, parent, {class: "soft"});
  if (tensor.error) element("p", tensor.error, parent, {class: "bad"});
  if (!tensor.figures) return;
  const figures = element("div", null, parent, {class: "figures"});
  for (const [name, value] of Object.entries(tensor.figures)) {
    if (value === null) continue;
    const one = element("div", null, figures, (name === "nan" || name === "inf") && value ? {class: "bad"} : {});
    element("span", name, one); one.appendChild(document.createTextNode(shown(value)));
  }
  if (tensor.bars) histogram(parent, tensor);
  if (!tensor.preview) { element("p", tensor.why || "", parent, {class: "note"}); return; }
  if (tensor.preview.said) element("p", tensor.preview.said, parent, {class: "note"});
  if (tensor.preview.shape.every(size => size === 1)) return;
  return new Heat(element("div", null, parent), tensor, datapoint);
}

function showScalars(parent, datapoint) {
  element("h2", `datapoint ${datapoint.key}`, parent);
  element("p", describe(datapoint), parent, {class: "soft"});
  const table = element("table", null, parent);
  for (const [path, value] of datapoint.scalars) { const row = element("tr", null, table); element("th", path, row); element("td", value, row); }
  if (datapoint.scalars_left_out) element("p", `and ${datapoint.scalars_left_out} more figures`, parent, {class: "note"});
}

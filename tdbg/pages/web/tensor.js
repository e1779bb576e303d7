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

function planeName(plane, leading) {
  const found = [];
  for (let at = leading.length - 1; at >= 0; at--) { found.unshift(plane % leading[at]); plane = Math.floor(plane / leading[at]); }
  return found;
}

// What stands at a cell of an axis: its place, or the places that it is the mean of, and their words.
function place(cell, block, [start, stop], words) {
  const first = start + cell * block, last = Math.min(first + block, stop) - 1;
  const text = first === last ? `${first}` : `${first}..${last}`;
  return words ? `${text} ${JSON.stringify(words.slice(first, last + 1).join(" "))}` : text;
}

function wordsFor(datapoint, size) {
  const found = (datapoint.tokens || []).find(one => one.words.length === size);
  return found ? found.words : null;
}

// Tiles side by side, as near to a square as they come.
function gridOf(planes, high, wide) {
  const columns = Math.min(Math.max(Math.ceil(Math.sqrt(planes * high / wide)), 1), planes);
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
  // A canvas of cells. Wheel, buttons and keys zoom, dragging and arrow keys move; words stand at the axes where there is room for them.
  // scale: {low, high, diverging} of the colours, shared with another picture; else that of the values. {diverging} alone: of
  // the values, with 0 in the middle.
  // fetchPart: given {planes, rows, columns}, the preview of that part; then other planes can be chosen, and zooming shows more.
  constructor(parent, tensor, datapoint, scale, fetchPart) {
    this.tensor = tensor; this.datapoint = datapoint; this.scale = scale; this.fetchPart = fetchPart; this.pinned = null;
    this.load(tensor.preview);
    this.base = this.preview; this.image = this.preview.image; this.plane = this.planes > 1 ? -1 : 0;
    this.build(parent);
    this.reset();
  }

  load(preview) {
    this.preview = preview; this.values = decode(preview); this.picture = null; this.cursor = null;
    [this.planes, this.high, this.wide] = preview.shape;
    const [, high, wide] = preview.whole, finite = this.values.filter(Number.isFinite);
    this.rowWords = wordsFor(this.datapoint, high); this.columnWords = wordsFor(this.datapoint, wide);
    this.low = finite.reduce((a, b) => Math.min(a, b), Infinity); this.top = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!finite.length) { this.low = 0; this.top = 0; }
    if (this.scale && this.scale.low !== undefined) { this.low = this.scale.low; this.top = this.scale.high; }
    else if (this.scale) { this.top = Math.max(-this.low, this.top, 0); this.low = -this.top; }
    this.colour = palette(this.low, this.top, Boolean(this.scale && this.scale.diverging));
    if (this.note) this.tellScale();
  }

  rescale() {  // the scale that is shared has become wider
    this.low = this.scale.low; this.top = this.scale.high; this.picture = null;
    this.colour = palette(this.low, this.top, Boolean(this.scale.diverging));
    if (this.under) this.under = null;  // in colours of before
    this.tellScale(); this.draw();
  }

  build(parent) {
    const tools = element("div", null, parent, {class: "tools"});
    if (this.fetchPart && this.planes < this.preview.whole[0]) this.buildChooser(tools);
    if (this.planes > 1) {
      this.select = element("select", null, tools, {"aria-label": "plane"});
      this.fillSelect();
      this.select.addEventListener("change", () => { this.restore(); this.plane = Number(this.select.value); this.image = false; this.reset(); this.settle(); });
    }
    if (this.preview.image) this.button(tools, "image or channels", () => {
      this.restore(); this.image = !this.image; this.plane = -1; this.select.value = "-1"; this.reset();
    });
    this.button(tools, "+", () => this.zoomBy(1.5), "zoom in");
    this.button(tools, "\u2212", () => this.zoomBy(1 / 1.5), "zoom out");
    this.button(tools, "fit", () => this.reset());
    this.part = element("p", null, parent, {class: "part"});
    this.canvas = element("canvas", null, parent, {class: "map", tabindex: "0", role: "application", "aria-label": `${this.tensor.path || "values"} as colours. Arrow keys go from cell to cell, Enter lists the largest of a row, + and - zoom, 0 shows all.`});
    this.readout = element("p", "move over the picture, or with the arrow keys, for values", parent, {class: "readout", "aria-live": "polite"});
    this.row = element("div", null, parent);
    this.note = element("p", null, parent, {class: "note"});
    this.tellScale();
    this.canvas.addEventListener("mousemove", event => this.move(event));
    this.canvas.addEventListener("mousedown", event => { this.drag = [event.offsetX, event.offsetY]; this.dragged = false; });
    this.canvas.addEventListener("mouseup", () => { this.drag = null; });
    this.canvas.addEventListener("mouseleave", () => { this.drag = null; });
    this.canvas.addEventListener("click", event => { if (!this.dragged) this.pin(this.cellAt(event.offsetX, event.offsetY)); });
    this.canvas.addEventListener("wheel", event => { event.preventDefault(); this.zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY); });
    this.canvas.addEventListener("keydown", event => { if (this.press(event)) event.preventDefault(); });
  }

  tellScale() { this.note.textContent = `colours from ${shown(this.low)} to ${shown(this.top)}; magenta: nan, orange: inf, cyan: -inf`; }

  fillSelect() {
    this.select.textContent = "";
    element("option", "all side by side", this.select, {value: "-1"});
    for (let plane = 0; plane < this.planes; plane++) element("option", `[${this.nameOf(plane).join(", ")}]`, this.select, {value: String(plane)});
  }

  nameOf(plane) { return planeName(plane + this.preview.region[0][0], this.preview.leading); }

  // Which planes: an index of each leading dimension, the last one where they begin.
  buildChooser(tools) {
    const {leading} = this.preview, perImage = this.preview.image ? 3 : 1, names = leading.length === 2 && !/attention|attn/.test(this.tensor.path) ? ["sample", "channel"] : leading.map((_, at) => `index ${at}`);
    this.chosen = leading.slice(0, perImage > 1 ? -1 : undefined).map((size, at) => {
      const input = element("input", null, element("label", names[at] + " ", tools), {type: "number", min: "0", max: String(size - 1), class: "index"});
      input.value = "0";
      input.addEventListener("change", () => this.choose(this.chosen.reduce((found, one, place) => found * leading[place] + Math.min(Math.max(Math.floor(Number(one.value)) || 0, 0), leading[place] - 1), 0) * perImage));
      return input;
    });
    this.step = this.planes;
    this.button(tools, "\u2039", () => this.choose(Math.max(this.base.region[0][0] - this.step, 0)), "earlier planes");
    this.button(tools, "\u203a", () => { if (this.base.region[0][1] < this.base.whole[0]) this.choose(this.base.region[0][1]); }, "later planes");
  }

  // isFollowing: after another picture beside this one, which `onChoose` was told of.
  async choose(start, isFollowing) {
    if (this.onChoose && !isFollowing) this.onChoose(start);
    const {whole, leading, image} = this.base, last = leading[leading.length - 1];
    const end = image || leading.length < 2 ? whole[0] : (Math.floor(start / last) + 1) * last;  // one sample at a time
    const mine = this.asked = `planes ${start}`, preview = await this.fetchPart({planes: `${start}:${Math.min(start + this.step, end)}`});
    if (!preview || mine !== this.asked) return;
    this.load(preview); this.base = preview; this.under = null; this.image = preview.image && this.image;
    this.plane = this.planes > 1 ? -1 : 0;
    if (this.select) this.fillSelect();
    planeName(start, leading).forEach((index, at) => { if (this.chosen[at]) this.chosen[at].value = String(index); });
    this.reset();
  }

  button(parent, text, action, label) { element("button", text, parent, {type: "button", ...(label ? {"aria-label": label, title: label} : {})}).addEventListener("click", action); }

  get size() {  // of the picture, in cells
    if (this.plane >= 0) return [this.wide, this.high];
    const {columns, rows} = gridOf(this.tiles, this.high, this.wide);
    return [columns * (this.wide + 1) - 1, rows * (this.high + 1) - 1];
  }

  get tiles() { return this.image ? this.planes / 3 : this.planes; }  // an image is three planes

  // The picture of all rows and columns, after a part of them.
  restore() {
    if (this.preview === this.base) return;
    this.load(this.base); this.plane = this.basePlane; this.under = null;
  }

  reset() {
    this.restore(); this.asked = null;
    const [wide, high] = this.size, labelled = this.plane >= 0 && (this.rowWords || this.columnWords);
    this.left = labelled && this.rowWords ? 96 : 0; this.above = labelled && this.columnWords ? 96 : 0;
    const room = Math.max((this.canvas.parentNode.clientWidth || 900) - this.left - 40, 200);
    this.zoom = Math.max(Math.min(room / wide, 640 / high, 32), 0.25);
    this.canvas.width = Math.ceil(Math.min(wide * this.zoom, room)) + this.left;
    this.canvas.height = Math.ceil(Math.min(high * this.zoom, 640)) + this.above;
    this.x = this.y = 0; this.picture = null; this.row.textContent = "";
    this.tellPart();
    this.draw(); this.settle();
  }

  tellPart() {
    const {region, whole, leading} = this.preview, [planes, ...sides] = region, words = [];
    if (planes[1] - planes[0] < this.base.whole[0]) words.push(planes[1] - planes[0] === 1 ? `plane [${planeName(planes[0], leading).join(", ")}]` : `planes [${planeName(planes[0], leading).join(", ")}] to [${planeName(planes[1] - 1, leading).join(", ")}]`);
    sides.forEach(([from, to], at) => { if (to - from < whole[at + 1]) words.push(`${at ? "columns" : "rows"} ${from} to ${to - 1} of ${whole[at + 1]}`); });
    const [, high, wide] = this.preview.block;
    if (high * wide > 1) words.push(`each cell is the mean of ${high} by ${wide} values`);
    else if (this.preview !== this.base) words.push("each cell is a value");
    if (this.preview.kind === "u1") words.push("values rounded to 252 levels");
    if (!this.fetchPart) return;  // there it is said once, above
    this.part.textContent = words.length ? "Shown: " + words.join(", ") : "";
  }

  // The planes that one picture without gaps is of; null for several side by side.
  get single() {
    const first = this.preview.region[0][0];
    if (this.image) return this.planes === 3 ? [first, first + 3] : null;
    return this.plane >= 0 ? [first + this.plane, first + this.plane + 1] : null;
  }

  settle() {  // once the view rests, a part of it is asked for where more can be seen
    if (!this.fetchPart || !this.single) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refine(), 200);
  }

  visible() {  // rows and columns of values that lie in the window
    const {block, region, whole} = this.preview;
    return [[this.y, this.canvas.height - this.above, 1], [this.x, this.canvas.width - this.left, 2]].map(([moved, room, at]) => {
      const from = region[at][0] + Math.floor(-moved / this.zoom) * block[at], to = region[at][0] + Math.ceil((room - moved) / this.zoom) * block[at];
      return [Math.min(Math.max(from, 0), whole[at] - 1), Math.max(Math.min(to, whole[at]), 1)];
    });
  }

  async refine() {
    if (!this.single || !this.canvas.isConnected) return;
    const seen = this.visible(), coarse = preview => Math.max(preview.block[1], preview.block[2]);
    const wanted = Math.max(Math.floor(coarse(this.preview) / this.zoom), 1);
    const covers = preview => seen.every(([from, to], at) => preview.region[at + 1][0] <= from && to <= preview.region[at + 1][1]);
    if (covers(this.preview) && coarse(this.preview) <= wanted) return;
    if (coarse(this.base) <= wanted) { if (this.preview !== this.base) this.swap(this.base, this.basePlane); return; }
    const [rows, columns] = seen.map(([from, to], at) => [Math.max(from - Math.ceil((to - from) / 4), 0), Math.min(to + Math.ceil((to - from) / 4), this.base.whole[at + 1])]);
    const words = {planes: this.single.join(":"), rows: rows.join(":"), columns: columns.join(":")}, mine = JSON.stringify(words);
    if (mine === this.asked) return;
    this.asked = mine;
    const preview = await this.fetchPart(words);
    if (!preview || mine !== this.asked || (covers(this.preview) && coarse(preview) >= coarse(this.preview))) return;
    this.swap(preview, 0);
  }

  // Another preview of the same plane: what lies in the window stays where it is.
  swap(preview, plane) {
    const from = this.preview;
    if (from === this.base) { this.basePlane = this.plane; this.under = {picture: this.picture, preview: from}; }
    const size = one => Math.max(one.block[1], one.block[2]), zoom = this.zoom * size(preview) / size(from);
    const shift = (moved, at) => (moved / this.zoom * size(from) + preview.region[at][0] - from.region[at][0]) / size(preview) * zoom;
    const x = shift(this.x, 2), y = shift(this.y, 1), cursor = this.cursor && this.cursor.map((cell, at) => Math.floor((from.region[2 - at][0] + (cell + 0.5) * from.block[2 - at] - preview.region[2 - at][0]) / preview.block[2 - at]));
    this.load(preview); this.plane = this.image ? -1 : plane;
    if (preview === this.base) this.under = null;
    this.zoom = zoom; this.x = x; this.y = y; this.cursor = cursor; this.row.textContent = "";
    this.tellPart(); this.draw();
  }

  press(event) {  // true if the key is of the picture
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (moves) this.moveCursor(moves, event.shiftKey ? 10 : 1);
    else if (event.key === "Enter" || event.key === " ") this.pin(this.cursor && this.cell(...this.cursor));
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5, ...this.cursorPlace());
    else if (event.key === "-" || event.key === "_") this.zoomBy(1 / 1.5, ...this.cursorPlace());
    else if (event.key === "0" || event.key === "Home") this.reset();
    else return false;
    return true;
  }

  cursorPlace() { return this.cursor ? [this.left + this.x + (this.cursor[0] + 0.5) * this.zoom, this.above + this.y + (this.cursor[1] + 0.5) * this.zoom] : []; }

  moveCursor([right, down], count) {
    const sizes = this.size, limit = (value, size) => Math.min(Math.max(value, 0), size - 1);
    const first = [-this.x, -this.y].map((moved, at) => limit(Math.ceil(moved / this.zoom), sizes[at]));
    let next = this.cursor ? [limit(this.cursor[0] + right * count, sizes[0]), limit(this.cursor[1] + down * count, sizes[1])] : first;
    if (!this.cell(...next)) next = [limit(next[0] + right, sizes[0]), limit(next[1] + down, sizes[1])];  // a line between tiles
    if (!this.cell(...next)) return;
    this.cursor = next;
    const rooms = [this.canvas.width - this.left, this.canvas.height - this.above];
    const [x, y] = [this.x, this.y].map((moved, at) => Math.min(Math.max(moved, -next[at] * this.zoom), Math.max(rooms[at] - (next[at] + 1) * this.zoom, -next[at] * this.zoom)));
    const [keptX, keptY] = [this.x, this.y].map((moved, at) => moved + next[at] * this.zoom >= 0 && moved + (next[at] + 1) * this.zoom <= rooms[at]);
    this.x = keptX ? this.x : x; this.y = keptY ? this.y : y;
    this.readout.textContent = this.told(this.cell(...next));
    this.draw(); this.settle();
  }

  zoomBy(factor, x, y) {  // what lies below the pointer stays there
    const at = [x === undefined ? this.canvas.width / 2 : Math.max(x, this.left), y === undefined ? this.canvas.height / 2 : Math.max(y, this.above)];
    const zoom = Math.min(Math.max(this.zoom * factor, 0.25), 48), ratio = zoom / this.zoom;
    this.x = at[0] - this.left - (at[0] - this.left - this.x) * ratio;
    this.y = at[1] - this.above - (at[1] - this.above - this.y) * ratio;
    this.zoom = zoom; this.draw(); this.settle();
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
    if (this.under) this.drawUnder(context);
    context.drawImage(this.picture, this.left + this.x, this.above + this.y, this.picture.width * this.zoom, this.picture.height * this.zoom);
    if (this.cursor) this.drawCursor(context);
    context.restore();
    this.label(context);
  }

  drawUnder(context) {  // coarse cells beside the fine ones
    const {picture, preview} = this.under, share = this.zoom / Math.max(this.preview.block[1], this.preview.block[2]);
    const place = at => (preview.region[at][0] - this.preview.region[at][0]) * share, size = at => preview.block[at] * share;
    context.drawImage(picture, this.left + this.x + place(2), this.above + this.y + place(1), picture.width * size(2), picture.height * size(1));
  }

  drawCursor(context) {
    const side = Math.max(this.zoom, 3), [x, y] = [this.left + this.x + this.cursor[0] * this.zoom, this.above + this.y + this.cursor[1] * this.zoom];
    for (const [colour, out] of [["#000", 1.5], ["#fff", 0.5]]) { context.strokeStyle = colour; context.lineWidth = 1; context.strokeRect(x - out, y - out, side + 2 * out, side + 2 * out); }
  }

  label(context) {  // words at the axes: each one where they fit, else every second, fourth ...
    if (!this.left && !this.above) return;
    const step = Math.max(Math.ceil(11 / this.zoom), 1), [, blockHigh, blockWide] = this.preview.block;
    context.font = "10px sans-serif"; context.textBaseline = "middle"; context.textAlign = "right";
    context.fillStyle = getComputedStyle(document.body).color;
    const [, [firstRow], [firstColumn]] = this.preview.region;
    const word = (words, cell, block, first) => (words[first + cell * block] || "").slice(0, 16);
    for (let row = 0; this.left && row < this.high; row += step) {
      const y = this.above + this.y + (row + 0.5) * this.zoom;
      if (y > this.above && y < this.canvas.height) context.fillText(word(this.rowWords, row, blockHigh, firstRow), this.left - 4, y);
    }
    context.textAlign = "left";
    for (let column = 0; this.above && column < this.wide; column += step) {
      const x = this.left + this.x + (column + 0.5) * this.zoom;
      if (x <= this.left || x >= this.canvas.width) continue;
      context.save(); context.translate(x, this.above - 4); context.rotate(-Math.PI / 2);
      context.fillText(word(this.columnWords, column, blockWide, firstColumn), 0, 0); context.restore();
    }
  }

  move(event) {
    if (this.drag) {
      this.x += event.offsetX - this.drag[0]; this.y += event.offsetY - this.drag[1];
      this.drag = [event.offsetX, event.offsetY]; this.dragged = true; this.draw(); this.settle();
    }
    const cell = this.cellAt(event.offsetX, event.offsetY);
    this.readout.textContent = cell ? this.told(cell) : "";
  }

  told([plane, row, column]) {
    const [, blockHigh, blockWide] = this.preview.block, [, rows, columns] = this.preview.region, {shape} = this.tensor;
    const cell = [place(row, blockHigh, rows, this.rowWords), place(column, blockWide, columns, this.columnWords)];
    const name = this.nameOf(plane), isLast = this.preview.leading.length === shape.length - 2 && shape.length > 2 && this.preview.leading[name.length - 1] !== shape[shape.length - 3];
    const values = this.image ? [0, 1, 2].map(channel => this.value(plane + channel, row, column)) : [this.value(plane, row, column)];
    const channel = this.image ? "0..2" : name[name.length - 1], before = name.slice(0, -1), about = blockHigh * blockWide > 1 ? "mean " : this.preview.exact || this.image ? "" : "\u2248 ";
    const at = isLast ? [...before, ...cell, channel] : [...(this.image ? (before.length ? [...before, channel] : []) : name), ...cell];
    return `[${at.slice(-Math.max(shape.length, 1)).join(", ")}] = ${about}${values.map(shown).join(", ")}`;
  }

  pin(cell) {  // the largest values of one row: of attention, where a token looks
    this.row.textContent = "";
    if (!cell || this.image || this.wide < 2) return;
    const [plane, row] = cell, [, blockHigh, blockWide] = this.preview.block, [, rows, columns] = this.preview.region;
    const values = Array.from({length: this.wide}, (_, column) => [this.value(plane, row, column), column]);
    values.sort((a, b) => (b[0] - a[0]) || 0);
    element("p", `largest in row ${place(row, blockHigh, rows, this.rowWords)}${columns[1] - columns[0] < this.preview.whole[2] ? `, columns ${columns[0]} to ${columns[1] - 1}` : ""}:`, this.row, {class: "note"});
    const table = element("table", null, this.row);
    for (const [value, column] of values.slice(0, 10)) {
      const line = element("tr", null, table);
      element("th", place(column, blockWide, columns, this.columnWords), line);
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

// fetchPart: as of Heat.
function showTensor(parent, datapoint, tensor, fetchPart) {
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
  if (tensor.preview.said && !fetchPart) element("p", tensor.preview.said, parent, {class: "note"});
  if (tensor.preview.shape.every(size => size === 1)) return;
  return new Heat(element("div", null, parent), tensor, datapoint, undefined, fetchPart);
}

function showScalars(parent, datapoint) {
  element("h2", `datapoint ${datapoint.key}`, parent);
  element("p", describe(datapoint), parent, {class: "soft"});
  const table = element("table", null, parent);
  for (const [path, value] of datapoint.scalars) { const row = element("tr", null, table); element("th", path, row); element("td", value, row); }
  if (datapoint.scalars_left_out) element("p", `and ${datapoint.scalars_left_out} more figures`, parent, {class: "note"});
}

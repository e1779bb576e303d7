// Grad-CAM over the picture that it is of, with a slider for how much of it is seen.
const MAP = /(^|[/:.])gradcam$/, INPUT = /^inputs?([./:]|$)/;

// base: of the run. where: {key, nth, batch}. Nothing is drawn where there is no map, or no picture of as many samples.
export async function showOverlays({parent, base, ask, where, tensors}) {
  const maps = tensors.filter(one => MAP.test(one.path)), images = tensors.filter(one => INPUT.test(one.path) && sizeOf(one));
  for (const map of maps) {
    const image = images.find(one => fits(one, map));
    if (!image) continue;
    const card = appendElement("section", undefined, parent, "tensor");
    appendElement("h2", `${map.path} over ${image.path}`, card);
    try {
      const [drawn, heat] = await Promise.all([image, map].map(one => ask(base + "/pages/picture", {...where, path: one.path, planes: ":"})));
      if (drawn.preview && !drawn.preview.image) throw new Error(`${image.path} is not drawn as an image (three channels, at least 8 by 8)`);
      if (!drawn.preview || !heat.preview) throw new Error("it takes too much room to be drawn");
      fillOverlay(card, drawn.preview, heat.preview);
    } catch (error) {
      if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
    }
  }
}

// Samples, rows and columns of pictures; null for what is none.
function sizeOf({shape, dtype}) {
  const whole = shape.length === 3 ? [1, ...shape] : shape;
  if (whole.length !== 4) return null;
  if (dtype === "uint8" && (whole[3] === 3 || whole[3] === 4)) return {count: whole[0], sides: [whole[1], whole[2]]};
  return whole[1] === 3 ? {count: whole[0], sides: [whole[2], whole[3]]} : null;
}

function fits(image, map) {
  const samples = map.shape.slice(0, -2).reduce((a, b) => a * b, 1);
  return map.shape.length >= 2 && samples === sizeOf(image).count;
}

function fillOverlay(card, image, heat) {
  const tools = appendElement("div", undefined, card, "tools"), pixels = decode(image), values = decode(heat), count = Math.min(image.shape[0] / 3, heat.shape[0]);
  const opacity = appendElement("input", undefined, appendElement("label", "opacity of the map ", tools));
  opacity.type = "range", opacity.min = "0", opacity.max = "100", opacity.value = "50";
  const canvas = appendElement("canvas", undefined, card, "overlay"), told = appendElement("p", undefined, card, "note");
  canvas.setAttribute("role", "img"), canvas.setAttribute("aria-label", "the picture with the map over it");
  let sample = 0;
  if (count > 1) {
    const input = appendElement("input", undefined, appendElement("label", "sample ", tools));
    input.type = "number", input.min = "0", input.max = String(count - 1), input.value = "0", input.className = "index";
    input.addEventListener("change", () => { sample = Math.min(Math.max(Math.floor(Number(input.value)) || 0, 0), count - 1); draw(); });
  }
  opacity.addEventListener("input", draw);
  function draw() {
    const [, high, wide] = image.shape, [, heatHigh, heatWide] = heat.shape, size = heatHigh * heatWide;
    const zoom = Math.max(Math.min(Math.floor(Math.min((card.clientWidth || 400) / wide, 480 / high)), 16), 1);
    canvas.width = wide * zoom, canvas.height = high * zoom;
    const context = canvas.getContext("2d"), part = values.slice(sample * size, (sample + 1) * size), known = part.filter(Number.isFinite);
    const low = known.reduce((a, b) => Math.min(a, b), Infinity), top = known.reduce((a, b) => Math.max(a, b), -Infinity), colour = palette(low, top, false);
    context.imageSmoothingEnabled = false;
    context.drawImage(paint(wide, high, at => pictureColour(pixels, image, sample, at)), 0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = true, context.globalAlpha = Number(opacity.value) / 100;
    context.drawImage(paint(heatWide, heatHigh, at => colour(part[at])), 0, 0, canvas.width, canvas.height);
    context.globalAlpha = 1;
    opacity.setAttribute("aria-valuetext", opacity.value + " %");
    told.textContent = known.length ? `map from ${shown(low)} to ${shown(top)}, ${heatHigh} by ${heatWide}, over ${high} by ${wide}` : "the map has no finite value";
  }
  draw();
}

function paint(wide, high, colourAt) {
  const canvas = document.createElement("canvas");
  canvas.width = wide, canvas.height = high;
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
  for (let at = 0; at < wide * high; at++) image.data.set([...colourAt(at), 255], 4 * at);
  context.putImageData(image, 0, 0);
  return canvas;
}

function pictureColour(pixels, image, sample, at) {
  const size = image.shape[1] * image.shape[2], values = [0, 1, 2].map(channel => pixels[(3 * sample + channel) * size + at]);
  if (image.kind === "raw") return values;
  const inside = image.low >= 0 && image.high <= 1, low = inside ? 0 : image.low, high = inside ? 1 : image.high;
  return values.map(value => 255 * (value - low) / ((high - low) || 1));
}

// The text of a datapoint, its tokens coloured by a number of each where one was captured.
const MAX_SHOWN = 4096;

export async function showTokens({parent, base, ask, where}) {
  const card = appendElement("section", undefined, parent, "tokens");
  try {
    const {lists} = await ask(base + "/pages/tokens", where);
    for (const list of lists) fillTokens(card, list);
  } catch (error) {
    if (error.name !== "AbortError") appendElement("p", error.message, card, "state bad");
  }
}

function fillTokens(card, {path, words, values}) {
  appendElement("h2", `${path}: ${formatNumber(words.length)} tokens`, card);
  const text = appendElement("p", undefined, card, "text"), told = appendElement("p", undefined, undefined, "note");
  const spans = words.slice(0, MAX_SHOWN).map(word => {
    const span = appendElement("span", word || "\u00a0", text);
    text.append(" ");
    return span;
  });
  if (values.length) {
    const tools = appendElement("div", undefined, undefined, "tools"), select = appendElement("select", undefined, appendElement("label", "colour by ", tools));
    for (const one of [{name: "nothing"}, ...values]) appendElement("option", one.name, select);
    select.selectedIndex = 1;
    select.addEventListener("change", () => colour(values[select.selectedIndex - 1]));
    card.insertBefore(tools, text);
    colour(values[0]);
  }
  card.append(told);
  if (words.length > MAX_SHOWN) appendElement("p", `The first ${formatNumber(MAX_SHOWN)} are shown.`, card, "note");

  function colour(chosen) {
    const known = chosen ? chosen.values.filter(Number.isFinite) : [];
    const low = known.reduce((a, b) => Math.min(a, b), Infinity), top = known.reduce((a, b) => Math.max(a, b), -Infinity), paint = known.length ? palette(low, top, false) : null;
    spans.forEach((span, at) => {
      const value = chosen ? Number(chosen.values[at]) : 0, [red, green, blue] = paint ? paint(value) : [0, 0, 0];
      span.style.background = paint ? `rgb(${red}, ${green}, ${blue})` : "";
      span.style.color = paint ? (0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000" : "#fff") : "";
      span.title = chosen ? `[${at}] ${shown(value)}` : `[${at}]`;
    });
    const colours = low < 0 && top > 0 ? "blue: negative, white: 0, red: positive; " : "", [dark, light] = colours ? ["", ""] : [" (dark)", " (light)"];
    told.textContent = paint ? `${chosen.name}: ${colours}from ${shown(low)}${dark} to ${shown(top)}${light}` : "";
  }
}

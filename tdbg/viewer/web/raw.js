// The JSON of everything that the other pages show.
const ADDRESSES = ["report", "findings", "status", "ranks", "steps", "metrics", "pages", "traces", "overview"];

export async function showRaw({root, base, ask}) {
  root.replaceChildren();
  const tools = appendElement("p", undefined, root, "tools"), shown = appendElement("pre", "Choose one.", root, "mono");
  for (const name of ADDRESSES) {
    const button = appendElement("button", name, tools);
    button.type = "button";
    button.addEventListener("click", async () => {
      for (const one of tools.children) one.setAttribute("aria-pressed", String(one === button));
      shown.textContent = "Loading ...";
      try {
        shown.textContent = JSON.stringify(await ask(base + "/" + name), null, 1);
      } catch (error) {
        shown.textContent = error.message;
      }
    });
  }
}

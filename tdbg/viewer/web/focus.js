// Focus that stays while a page is drawn anew: an element is found again by its id, else by its words in the same part.
const CAN_FOCUS = "a[href], button, input, select, summary, pre, [tabindex]";

const wordsOf = one => one.localName + " " + (one.localName === "div" ? one.className : one.getAttribute("aria-label") || one.textContent);

// What has the focus below a place, so that restoreFocus finds it again; null where nothing has.
export function findFocus(root) {
  const one = document.activeElement;
  if (!root.contains(one) || one === root) return null;
  if (one.id) return {id: one.id};
  const part = one.closest("[id]"), words = wordsOf(one);
  return {part: part.id, words, nth: listAlike(part, words).indexOf(one)};
}

// True once it has the focus again: what a page adds later may not be there yet.
export function restoreFocus(kept) {
  const part = document.getElementById(kept.id || kept.part), found = part && (kept.id ? part : listAlike(part, kept.words)[kept.nth]);
  if (found) found.focus({preventScroll: true});
  return Boolean(found);
}

const listAlike = (part, words) => [...part.querySelectorAll(CAN_FOCUS)].filter(one => wordsOf(one) === words);

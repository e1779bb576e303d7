// What the pages that draw a run that goes on share: when they draw it again, and how a finding is named in the address.
export const EVERY_MS = 15000;  // between drawings

// Calls redraw at a new finding and at the end at once, else now and then; update with each status. status: of the run now,
// if it is known already.
export function followDrawing({listen, base, status, redraw, update}) {
  let known = status && JSON.stringify(status.last_finding), drawnAt = Date.now();
  async function take(now) {
    if (update) update(now);
    known = known || JSON.stringify(now.last_finding);
    const isNew = JSON.stringify(now.last_finding) !== known;
    if (!isNew && now.state === "running" && Date.now() - drawnAt < EVERY_MS) return;
    known = JSON.stringify(now.last_finding), drawnAt = Date.now();
    await redraw(now);
  }
  listen(base + "/events", {status: now => take(now).catch(() => {})});
}

export const describeDrawing = () => `The run goes on. Drawn at ${new Date().toLocaleTimeString("en-GB")}; drawn again at a new finding, else every ${EVERY_MS / 1000} s.`;

const NAME = /^(TD-[A-Z]\d+)(?:-step(\d+))?(?:-rank(\d+))?/;

// The place in the list of the finding that an address names; -1 for none. isWhole: no finding comes any more. Then one whose
// step or module was found out since is the nearest one of its code, first of its rank. In older addresses stands the place itself.
export function findNamed(findings, name, isWhole) {
  const same = findings.findIndex(one => one.id === name), [, code, step, rank] = NAME.exec(name) || [];
  if (same >= 0 || !isWhole) return same;
  if (/^\d+$/.test(name)) return Number(name) < findings.length ? Number(name) : -1;
  if (!code) return -1;
  const distance = one => (String(one.rank ?? "") === (rank || "") ? 0 : 1e15) + Math.abs((one.step ?? 0) - Number(step || 0));
  const alike = findings.filter(one => one.code === code).sort((a, b) => distance(a) - distance(b));
  return alike.length ? findings.indexOf(alike[0]) : -1;
}

// The pages of tdbg: a session, requests with it, and the page that the address names.
import {showComparison} from "./compare.js";
import {showRuns} from "./runs.js";
import {showFlags} from "./flags.js";
import {showLogs} from "./logs.js";
import {showMetrics} from "./metrics.js";
import {showOverview} from "./overview.js";
import {showRanks} from "./ranks.js";
import {showRaw} from "./raw.js";
import {showTensors} from "./tensors.js";
import {showTraces} from "./traces.js";

const API = "/api/v1";
const KEPT = "tdbg-session";
const RETRY_MS = 3000, REFRESH_MS = 5000;
const LAST_WORDS = {401: "Open the address that `tdbg view` printed.", 404: "The run is gone."};  // by the status of an answer
const FOLLOWING = new Set(["overview", "ranks"]);  // they listen by themselves
// Name in the address, title, what fills it. Each takes {root, run, base, ask, ...} and may return {refresh, close}.
const PAGES = [
  ["overview", "Overview", showOverview], ["ranks", "Ranks", showRanks], ["tensors", "Tensors", showTensors], ["logs", "Logs", showLogs],
  ["metrics", "Metrics", showMetrics], ["traces", "Traces", showTraces], ["flags", "Flags", showFlags], ["raw", "Raw", showRaw],
];

const content = document.getElementById("content"), nav = document.getElementById("nav"), lost = document.getElementById("lost");
let lostAt = "", session = sessionStorage.getItem(KEPT), canControl = false, shown = null, number = 0;

class Refused extends Error {
  constructor(status, problem) {
    super(problem.error || "the server answered " + status);
    this.status = status, this.tryNext = problem.try_next || "";
  }
}

// The token stands behind the # of the first address; it is given once for a session and leaves the address.
async function openSession() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  const answer = await fetch(API + "/session", {method: "POST", body: JSON.stringify({token})});
  if (!answer.ok) throw new Refused(answer.status, await answer.json());
  session = (await answer.json()).session;
  sessionStorage.setItem(KEPT, session);
}

const headers = () => ({authorization: "Bearer " + session});

function ask(path, query, signal) {
  const words = query ? "?" + new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined)) : "";
  return request(path + words, {signal});
}

const send = (path, body) => request(path, {method: "POST", body: JSON.stringify(body)});

async function request(path, about) {
  return (await fetchAnswer(path, about)).json();
}

// A file goes through the page, since a link could not send the session.
async function download(path, query, signal) {
  const answer = await fetchAnswer(path + "?" + new URLSearchParams(query), {signal});
  const to = link(URL.createObjectURL(await answer.blob()), "");
  to.download = (answer.headers.get("content-disposition") || "").match(/filename="([^"]+)"/)?.[1] || "trace.json";
  to.click();
  setTimeout(() => URL.revokeObjectURL(to.href), 10_000);
}

async function fetchAnswer(path, about) {
  let answer;
  try {
    answer = await fetch(API + path, {headers: headers(), ...about});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, {error: "the server does not answer", try_next: "is `tdbg view` still running?"});
  }
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

// Server-sent events, read by fetch: an EventSource could not send the session in a header. A hidden page does not listen:
// a browser opens six connections to a server. After what ends a stream before its last event, it is opened again.
async function listen(path, handlers, signal) {
  while (!signal.aborted) {
    await untilVisible(signal);
    const stop = new AbortController(), end = () => stop.abort();
    const endIfHidden = () => { if (document.hidden) end(); };
    document.addEventListener("visibilitychange", endIfHidden);
    signal.addEventListener("abort", end);
    try {
      if (await readEvents(path, handlers, stop.signal)) return;
      updateLostNotice("the server ended it");
    } catch (error) {
      if (signal.aborted) return;
      if (LAST_WORDS[error.status]) return showEnd(LAST_WORDS[error.status]);
      if (error.name !== "AbortError") updateLostNotice(error.message);
    } finally {
      document.removeEventListener("visibilitychange", endIfHidden);
      signal.removeEventListener("abort", end);
    }
    await new Promise(done => setTimeout(done, RETRY_MS));
  }
}

// True once the last event has come.
async function readEvents(path, handlers, signal) {
  const answer = await fetchAnswer(path, {signal});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return false;
    updateLostNotice("");
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const name = lines.find(line => line.startsWith("event: ")), data = lines.find(line => line.startsWith("data: "));
      if (name && data && handlers[name.slice(7)]) handlers[name.slice(7)](JSON.parse(data.slice(6)));
      if (name === "event: end") return true;
    }
  }
}

function untilVisible(signal) {
  if (!document.hidden) return;
  return new Promise(done => {
    document.addEventListener("visibilitychange", done, {once: true, signal});
    signal.addEventListener("abort", done, {once: true});
  });
}

// What a live page shows may be old: that stands above it until the server answers again. why: empty once it does.
function updateLostNotice(why) {
  if (!why) lost.hidden = true;
  else if (lost.hidden) lost.hidden = false, lostAt = formatTime(), lost.textContent = `Connection lost (${why}). What this page shows is of ${lostAt} or earlier; reconnecting.`;
}

// After this it does not ask again.
function showEnd(words) {
  if (lost.hidden) lost.hidden = false, lostAt = formatTime();
  lost.textContent = `${words} What this page shows is of ${lostAt} or earlier.`;
}

const formatTime = () => new Date().toLocaleTimeString("en-GB");

function addRefreshButton(line) {
  const button = appendElement("button", "Show what is new", line);
  button.type = "button", button.id = "refresh";
  button.addEventListener("click", () => openAddress(location.pathname + location.search + location.hash));
}

// A page that does not follow a live run by itself says of when it is, and is drawn anew: by itself where it can be, else on request.
function followRun(given, refresh) {
  const line = appendElement("p", undefined, undefined, "note"), told = appendElement("span", undefined, line);
  line.id = "as-of";
  if (!refresh) addRefreshButton(line);
  let drawnAt = Date.now(), time = formatTime(), isBusy = false;
  async function update(status) {
    if (status.state !== "running") return line.isConnected && finish();
    told.textContent = `The run goes on; this page is of ${time}. `;
    if (!line.isConnected) content.prepend(line);
    if (!refresh || isBusy || Date.now() - drawnAt < REFRESH_MS) return;
    isBusy = true;
    await refresh().then(() => { drawnAt = Date.now(), time = formatTime(); }, () => {});
    isBusy = false, told.textContent = `The run goes on; this page is of ${time}. `;
  }
  function finish() {
    told.textContent = `The run has ended; this page is of ${time}. `;
  }
  listen(given.base + "/events", {status: update}, given.stop);
}

function showState(root, text, isBad) {
  dropCharts(root);
  root.replaceChildren();
  const line = document.createElement("p");
  line.className = "state" + (isBad ? " bad" : "");
  line.textContent = text;
  root.append(line);
}

function readAddress() {
  const [, what, ...names] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (what === "compare" && names.length === 2) return {run: "", page: "compare", names};
  const [, first, run, page] = location.pathname.split("/").map(decodeURIComponent);
  return first === "runs" && run ? {run, page: page || "overview"} : {run: "", page: "runs"};
}

function fillNav(where) {
  nav.replaceChildren();
  const brand = link("/runs", "Runs");
  if (where.page === "runs") brand.setAttribute("aria-current", "page");
  nav.append(brand);
  if (where.page === "runs") return;
  const name = document.createElement("span"), text = where.names ? where.names.join(" and ") : where.run;
  name.className = "name", name.textContent = text, name.title = text;
  nav.append(name);
  if (where.names) return;
  for (const [page, title] of PAGES) {
    const to = link(addressOf(where.run, page), title);
    if (page === where.page) to.setAttribute("aria-current", "page");
    nav.append(to);
  }
}

function link(to, text) {
  const found = document.createElement("a");
  found.href = to, found.textContent = text;
  return found;
}

const addressOf = (run, page) => "/runs/" + encodeURIComponent(run) + "/" + page;

async function showPage() {
  const mine = ++number, where = readAddress();
  if (shown && shown.close) shown.close();
  shown = null, lost.hidden = true;
  fillNav(where);
  delete document.documentElement.dataset.drawn;
  const entry = PAGES.find(([page]) => page === where.page);
  document.title = where.names ? `${where.names.join(" and ")} - tdbg` : where.run ? `${where.run}: ${entry ? entry[1] : "?"} - tdbg` : "Runs - tdbg";
  showState(content, "Loading ...");
  const stop = new AbortController();
  const given = {root: content, run: where.run, names: where.names, stop: stop.signal, ask: (path, query, signal = stop.signal) => ask(path, query, signal), download: (path, query) => download(path, query, stop.signal), listen: (path, handlers) => listen(path, handlers, stop.signal), send, canControl, showState, link, addressOf, open: openAddress};
  shown = {close: () => stop.abort()};
  try {
    if (where.run && !entry) return showState(content, "There is no such page.", true);
    if (entry) given.base = "/runs/" + encodeURIComponent(where.run);
    const page = await (entry ? entry[2] : where.names ? showComparison : showRuns)(given);
    if (mine === number && page && page.close) shown = {close: () => (stop.abort(), page.close())};
    if (mine === number && entry && !FOLLOWING.has(where.page)) followRun(given, page && page.refresh);
  } catch (error) {
    if (mine !== number || error.name === "AbortError") return;
    showState(content, error instanceof Refused ? error.message + (error.tryNext ? ": " + error.tryNext : "") : "This page failed: " + error.message, true);
    if (!(error instanceof Refused)) throw error;
  }
  if (mine === number) document.documentElement.dataset.drawn = location.pathname + (where.names ? location.hash : "");
}

// A page that is drawn anew by what was chosen on it keeps the focus where it was.
async function openAddress(to) {
  const focused = document.activeElement && document.activeElement.id;
  if (to !== location.pathname + location.search + location.hash) history.pushState(null, "", to);
  await showPage();
  if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus();
}

addEventListener("popstate", showPage);
addEventListener("click", event => {
  if (event.target.closest(".skip")) return event.preventDefault(), content.focus();
  const to = event.target.closest("a[href^='/runs']");
  if (!to || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  openAddress(to.getAttribute("href"));
});

try {
  await openSession();
  if (session) canControl = (await request("/server", {})).control, await showPage();
  else fillNav(readAddress()), showState(content, "Not signed in: open the URL with #token=... that `tdbg view` or `tdbg run --serve` printed.", true);
} catch (error) {
  showState(content, error.message + (error.tryNext ? ": " + error.tryNext : ""), true);
}

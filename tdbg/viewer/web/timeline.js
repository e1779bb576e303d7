// The spans of a trace over time: the longest of the range that is in view, fetched anew with each zoom.
const POLL_MS = 700, SETTLE_MS = 150, LETTER_PX = 7, LEAST_LETTERS = 4, HEIGHT_PX = 460, LEAST_ROWS = 16;
const KINDS = {s: ["span", "#c38fc9"], f: ["line of the program", "#7fb069"], o: ["operator", "#e6a157"], r: ["call of the runtime", "#a9b0b8"], k: ["kernel", "#5b9bd5"], c: ["copy or fill", "#d3c35b"]};

export const pause = ms => new Promise(done => setTimeout(done, ms));

// Returns {show, redraw}: the one draws the timeline of a trace into the section, the other the same part again.
export function addTimeline(section, {base, ask}) {
  const note = appendElement("p", "Asking for the longest spans ...", section, "note"), graph = appendElement("div", undefined, section, "graph");
  graph.id = "timeline", note.id = "timeline-note", note.setAttribute("role", "status");
  graph.style.height = HEIGHT_PX + "px", note.style.minHeight = "3em";  // nothing below moves when spans come
  let wanted = 0, trace = null, timer = 0, view = null;

  async function load(range) {
    view = range;
    const mine = ++wanted, query = {rank: trace.rank, attempt: trace.attempt, window: trace.window, ...(range ? {from_ms: range[0], to_ms: range[1]} : {})};
    try {
      for (;;) {
        const found = await ask(base + "/traces/spans", query);
        if (mine !== wanted || !graph.isConnected) return;
        if (!found.reading) return draw(found, range);
        note.textContent = found.reading.text;
        await pause(POLL_MS);
      }
    } catch (error) {
      if (error.name !== "AbortError" && mine === wanted) note.textContent = error.message;
    }
  }

  function draw(found, range) {
    const tops = stackLanes(found), length = found.to_ms - found.from_ms || 1;
    const left = found.left_out ? `; ${found.left_out.toLocaleString("en")} shorter ones are left out` : "";
    note.textContent = found.spans.length ? `The ${found.spans.length.toLocaleString("en")} longest spans${left}. Drag to zoom in, double click to see all.` : `No span is in this range${left}.`;
    if (!window.Plotly) return;
    const label = one => {  // as much of the name as the bar has room for
      const letters = Math.floor(0.8 * graph.clientWidth * one[4] / length / LETTER_PX);
      return letters < LEAST_LETTERS ? "" : escapeMarkup(cutText(found.names[one[0]].slice(1), letters));
    };
    Plotly.react(graph, Object.entries(KINDS).map(([kind, [title, color]]) => {
      const some = found.spans.filter(one => found.names[one[0]][0] === kind), name = one => escapeMarkup(cutText(found.names[one[0]].slice(1), 120));
      return {
        type: "bar", orientation: "h", name: title, x: some.map(one => one[4]), base: some.map(one => one[3]), y: some.map(one => tops.of[one[1]] + one[2]), width: 0.9,
        marker: {color, line: {width: 0}}, text: some.map(label), textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none",
        insidetextfont: {color: "#1c1e21", size: 10}, customdata: some.map(one => `${name(one)}<br>${escapeMarkup(found.lanes[one[1]])}`), hovertemplate: "%{customdata}<br>%{x:.5g} ms, from %{base:.6g} ms<extra></extra>",
      };
    }).filter(one => one.x.length), chartLayout({
      barmode: "overlay", height: HEIGHT_PX, showlegend: true, legend: {orientation: "h", y: 1, yanchor: "bottom"}, margin: {l: 10, r: 10, t: 30, b: 40},
      xaxis: {title: {text: "ms"}, range: range || [0, found.whole_ms]},
      yaxis: {tickvals: tops.of, ticktext: found.lanes.map(escapeMarkup), range: [Math.max(tops.rows, LEAST_ROWS) - 0.5, -0.6], fixedrange: true, automargin: true},
    }), CHART_CONFIG);
    graph.removeAllListeners("plotly_relayout");
    graph.on("plotly_relayout", followZoom);
  }

  function followZoom(change) {
    const [low, high] = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (low === undefined && !change["xaxis.autorange"]) return;
    clearTimeout(timer);
    timer = setTimeout(() => load(low === undefined ? null : [Number(low), Number(high)]), SETTLE_MS);
  }

  return {show: shown => { trace = shown, load(null); }, redraw: () => { if (trace) load(view); }};
}

// The row at which each lane begins, and how many rows there are: a lane is as high as its spans are nested.
function stackLanes(found) {
  const deep = found.lanes.map(() => 0), of = [];
  for (const one of found.spans) deep[one[1]] = Math.max(deep[one[1]], one[2]);
  let rows = 0;
  for (const depth of deep) of.push(rows), rows += depth + 1.4;
  return {of, rows: Math.max(rows, 1)};
}

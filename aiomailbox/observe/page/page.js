"use strict";
// All text of the job goes through textContent: names and records are anybody's. What is
// there already is changed and not made again, so that it can be selected and read.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const number = (n) => n == null ? "" : Math.round(n).toLocaleString("en");
const fine = (n) => n == null ? "" : n > 0 && n < 10 ? n.toFixed(1) : number(n);
const seconds = (s) => {
  const whole = Math.round(s), m = Math.floor(whole / 60), h = Math.floor(m / 60);
  if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
  return h ? `${h} h ${m % 60} min` : m ? `${m} min ${whole % 60} s` : `${whole} s`;
};
const bytes = (n) => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${fine(n)} ${unit}`;
    n /= 1024;
  }
  return `${fine(n)} TiB`;
};
// Beyond what JavaScript holds exactly are the first and the last watermark.
const moment = (ms) => ms == null || Math.abs(ms) > 8e15 ? ""
  : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
// Of today only the time: it is cut where it is shown, and told in whole.
const today = (text) => text.startsWith(new Date().toISOString().slice(0, 10)) ? text.slice(11) : text;

const duration = (ms) => ms < 0 ? `−${duration(-ms)}` : ms < 1000 ? `${fine(ms)} ms`
  : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : seconds(ms / 1000);

// What does not fit is told where the pointer is.
const RECORD = 110;
const short = {
  place: (text) => text.split("/").slice(-2).join("/"),
  record: (text) => text.length > RECORD ? `${text.slice(0, RECORD)}…` : text,
  moment: today,
};

// What the user's function raised: operator and line have places of their own.
const cause = (error) => error.replace(/^UserFunctionError: operator .*? failed at \S+: /s, "");

// Of chained tracebacks those of the user's code come first; the rest is the engine's.
function parted(traceback) {
  const joint = "\n\nThe above exception was the direct cause of the following exception:\n\n";
  const parts = traceback.split(joint);
  const isEngine = (text) => !/File "(?!.*[\\/]aiomailbox[\\/]\w+[\\/])/.test(text);
  const end = parts.findLastIndex((text) => !isEngine(text)) + 1;
  return end ? [parts.slice(0, end).join(joint), parts.slice(end).join(joint)] : [traceback, ""];
}

function say(node, text) {
  const value = text == null ? "" : String(text);
  if (node.textContent !== value) node.textContent = value;
}

function draw(kind, attributes, parent) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

// What the page has of the last five minutes: a row of [time, value] by name.
const KEPT_MS = 300_000;
// Rows come every three seconds: what is further apart is not joined.
const GAP_MS = 10_000;
let kept = { job: null, last: 0, series: new Map() };
const points = (key) => kept.series.get(key) || [];

function keep(answer) {
  const last = answer.times[answer.times.length - 1];
  if (last == null) return;
  kept.last = last;
  for (const [key, values] of Object.entries(answer.series)) {
    const row = kept.series.get(key) || [];
    values.forEach((value, place) => { if (value != null) row.push([answer.times[place], value]); });
    while (row.length && row[0][0] < last - KEPT_MS) row.shift();
    kept.series.set(key, row);
  }
}

function part(target, place, name) {
  const found = target.children[place];
  if (found.getAttribute("class") !== name) found.setAttribute("class", name);
  return found;
}

const across = (time) => (100 - (kept.last - time) * 100 / KEPT_MS).toFixed(1);

// A small line: one row, or the parts of a task's time above each other.
function line(target, rows, names, format) {
  if (!target.hasAttribute("viewBox")) {
    target.setAttribute("viewBox", "0 0 100 24");
    target.setAttribute("preserveAspectRatio", "none");
    target.setAttribute("class", names.length > 1 ? "line times" : "line");
    target.setAttribute("role", "img");
    for (const kind of ["title", "path", "path"]) draw(kind, {}, target);
  }
  const title = part(target, 0, "");
  const most = names.length > 1 ? 1 : Math.max(...rows[0].map((one) => one[1]), 0) || 1;
  const up = (value) => (23 - Math.min(1, value / most) * 22).toFixed(1);
  const below = new Map();
  rows.forEach((row, index) => {
    let path = "", area = "", begin = null, before = null;
    const close = () => {
      if (begin != null) area += `L${across(before)} 24 L${across(begin)} 24 Z `;
    };
    for (const [time, value] of row) {
      const sum = value + (below.get(time) || 0);
      if (names.length > 1) below.set(time, sum);
      const isFirst = before == null || time - before > GAP_MS;
      if (isFirst) { close(); begin = time; area += `M${across(time)} 24 L`; } else area += "L";
      area += `${across(time)} ${up(sum)} `;
      path += `${isFirst ? "M" : "L"}${across(time)} ${up(sum)} `;
      before = time;
    }
    close();
    // What is on top of it is drawn before it, from below.
    const first = names.length > 1 ? names.length - index : 1;
    part(target, first, names[index]).setAttribute("d", area);
    if (names.length === 1) part(target, 2, "").setAttribute("d", path);
  });
  const told = names.length > 1 ? "the last five minutes"
    : rows[0].length ? `at most ${format(most)} in the last five minutes` : "";
  say(title, told);
}

// A column is its head, and how its cells look: "number", "fine" (with a digit more),
// "bytes", "ms"; "flow" (how many, and how many a second); "long", "record" (cut), "cut" (a
// name), "place" (of a line), "bar", "times", "show", or nothing. A value that is
// [value, name] has a small line of that name, and so has [how many, name, a second].
const FORMATS = { number, fine, bytes: (n) => n == null ? "" : bytes(n),
  ms: (n) => n == null ? "" : duration(n) };
// What is in a cell, a text for each part, and how its line names the most there was.
const PARTS = { ...FORMATS, flow: number, keys: short.record };
const perSecond = (n) => n == null ? "" : `${fine(n)}/s`;
const AT_MOST = { ...FORMATS, flow: perSecond, keys: (n) => `${number(n * 100)} %` };

function fill(cell, kind, value) {
  if (kind === "bar") bar(cell, value);
  else if (kind === "times") {
    const svg = cell.firstChild || draw("svg", {}, cell);
    line(svg, [points(`busy ${value}`), points(`backpressured ${value}`)], ["busy", "pressed"]);
  } else if (kind === "show") {
    const button = cell.firstChild || cell.appendChild(document.createElement("button"));
    button.type = "button";
    button.className = "link cut";
    button.title = value.job;
    button.value = value.number;
    say(button, value.job);
  } else if (PARTS[kind]) {
    cell.className = kind === "keys" ? "keys" : "number";
    const [first, name, rate] = Array.isArray(value) ? value : [value];
    cell.classList.toggle("empty", !isSaid(first));
    if (kind === "keys") cell.title = first;
    if (!name) return say(cell, PARTS[kind](first));
    while (cell.children.length < 2) cell.append(document.createElement("span"), " ");
    say(cell.children[0], PARTS[kind](first));
    say(cell.children[1], perSecond(rate));
    line(cell.children[2] || draw("svg", {}, cell), [points(name)], ["area"], AT_MOST[kind]);
  } else {
    const shown = short[kind] ? short[kind](value || "") : value;
    cell.className = kind;
    if (short[kind] || kind === "cut") cell.title = value || "";
    say(cell, shown);
    cell.classList.toggle("empty", !isSaid(shown));
  }
}

function table(id, columns, rows, none, classes = []) {
  const target = $(id), body = target.tBodies[0] || target.createTBody();
  const heads = JSON.stringify(columns);
  if (target.dataset.heads !== heads) {
    target.dataset.heads = heads;
    target.deleteTHead();
    body.replaceChildren();
    const line = target.createTHead().insertRow();
    for (const [head, kind] of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = FORMATS[kind] || kind === "flow" ? "number" : "";
      cell.textContent = head;
      line.append(cell);
    }
  }
  target.tHead.hidden = !rows.length;
  if (!rows.length) {
    if (body.rows.length === 1 && body.rows[0].cells.length === 1) return;
    body.replaceChildren();
    const cell = body.insertRow().insertCell();
    cell.className = "none";
    cell.textContent = none;
    return;
  }
  if (body.rows.length && body.rows[0].cells.length !== columns.length)
    body.replaceChildren();
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, index) => {
    const line = body.rows[index] || body.insertRow();
    if (line.className !== (classes[index] || "")) line.className = classes[index] || "";
    row.forEach((value, place) => {
      let cell = line.cells[place];
      if (!cell) {
        cell = line.insertCell();
        cell.dataset.head = columns[place][0];
      }
      fill(cell, columns[place][1] || "", value);
    });
  });
}

const TIMES = [["busy", "busy"], ["backpressured", "pressed"], ["idle", "idle"]];
const share = (metrics, name) => metrics[`${name}_time_ms_per_second`] || 0;

function mood(metrics) {
  const [name, kind] = TIMES.reduce((most, one) =>
    share(metrics, one[0]) > share(metrics, most[0]) ? one : most);
  return share(metrics, name) ? kind : "";
}

function bar(cell, metrics) {
  const node = cell.firstChild || cell.appendChild(document.createElement("span"));
  node.className = "bar";
  TIMES.forEach(([name, kind], place) => {
    const part = node.children[place] || node.appendChild(document.createElement("i"));
    part.className = kind;
    part.style.width = `${share(metrics, name) / 10}%`;
    part.title = `${name} ${(share(metrics, name) / 10).toFixed(0)} %`;
  });
}

const ENDED = new Set(["finished", "failed", "canceled"]);
const lastFailure = (job) => job.failures[job.failures.length - 1];

// The operator that the job has failed in, or fails in now.
function failedOne(job) {
  const last = lastFailure(job);
  if (!last || !["failed", "failing", "restarting"].includes(job.state)) return null;
  return job.operators.find((one) => last.uid ? one.uid === last.uid
    : one.name === last.operator) || null;
}

const holding = (job) => job.bottleneck && !ENDED.has(job.state) ? job.bottleneck.operator : null;

// What the tasks of a vertex do, in a word or two.
function doing(job, kind) {
  if (ENDED.has(job.state)) return "ended";
  if (job.state !== "running") return job.state === "created" ? "starting" : job.state;
  return { pressed: "backpressured" }[kind] || kind || "starting";
}

// A box is a task: its first line says how busy it is, the others are its operators.
const BOX = { width: 216, head: 25, row: 21, foot: 6, across: 26 };
const NAME_MAX = 21;
let drawn = { shape: "", boxes: [], rows: [], lines: [] };

function layout(job) {
  const vertexOf = new Map(job.operators.map((one) => [one.name, one.vertex]));
  const edges = job.edges.filter((edge) => !edge.is_chained);
  const depth = new Map(job.vertices.map((one) => [one.vertex, 0]));
  const from = (edge) => vertexOf.get(edge.source), to = (edge) => vertexOf.get(edge.target);
  // The vertices come in topological order.
  for (const one of job.vertices)
    for (const edge of edges)
      if (from(edge) === one.vertex)
        depth.set(to(edge), Math.max(depth.get(to(edge)), depth.get(one.vertex) + 1));
  const columns = [], row = new Map();
  for (const one of job.vertices) (columns[depth.get(one.vertex)] ||= []).push(one);
  // In a column each is about where its sources are, so that fewer lines cross.
  const wanted = (one) => {
    const mine = edges.filter((edge) => to(edge) === one.vertex);
    return mine.reduce((sum, edge) => sum + row.get(from(edge)), 0) / (mine.length || 1);
  };
  for (const column of columns)
    column.sort((one, other) => wanted(one) - wanted(other))
      .forEach((one, place) => row.set(one.vertex, place));
  const heightOf = (one) => BOX.head + BOX.row * one.operators.length + BOX.foot;
  const sums = columns.map((column) => column.reduce((sum, one) =>
    sum + heightOf(one) + BOX.across, -BOX.across));
  const most = Math.max(...sums), gap = 96;
  const boxes = new Map(), places = new Map(), bottoms = [];
  columns.forEach((column, index) => {
    const x = 4 + index * (BOX.width + gap);
    let y = 16 + (most - sums[index]) / 2;
    for (const one of column) {
      boxes.set(one.vertex, { x, y, height: heightOf(one) });
      one.operators.forEach((name, place) =>
        places.set(name, [x, y + BOX.head + BOX.row * (place + 0.5)]));
      y += heightOf(one) + BOX.across;
    }
    bottoms[index] = y - BOX.across;
  });
  // A line over several columns passes below the boxes between its ends.
  const lane = (edge) => {
    const first = depth.get(from(edge)) + 1, last = depth.get(to(edge)) - 1;
    if (first > last) return null;
    const y = Math.max(...bottoms.slice(first, last + 1)) + BOX.across;
    bottoms.fill(y + 18, first, last + 1);
    const left = (index) => 4 + index * (BOX.width + gap);
    return [left(first), left(last) + BOX.width, y];
  };
  return { edges, boxes, places, lanes: edges.map(lane),
    width: columns.length * (BOX.width + gap) - gap + 8, height: Math.max(...bottoms) + 12 };
}

function curve(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2} `;
}

const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

function redraw(job, shape) {
  const { edges, boxes, places, lanes, width, height } = layout(job);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  // Smaller than this it scrolls.
  svg.style.minWidth = `${Math.round(width * 0.8)}px`;
  const lines = edges.map((edge, index) => {
    const [x1, b] = places.get(edge.source), [x2, d] = places.get(edge.target);
    const a = x1 + BOX.width;
    const [left, right, y] = lanes[index] || [(a + x2) / 2, (a + x2) / 2, (b + d) / 2];
    const way = lanes[index] ? curve(a, b, left, y) + `L${right} ${y} ` + curve(right, y, x2 - 5, d)
      : curve(a, b, x2 - 5, d);
    const group = draw("g", {}, svg);
    const title = draw("title", {}, group);
    draw("path", { d: `${way}M${x2 - 10} ${d - 4} L${x2 - 4} ${d} L${x2 - 10} ${d + 4}` }, group);
    const text = (from) => draw("text", { x: (left + right) / 2, y: y + from,
      "text-anchor": "middle", class: "soft" }, group);
    const isFlat = b === d || lanes[index];
    return { group, title, rate: text(isFlat ? -7 : -12), waits: text(isFlat ? 16 : 18) };
  });
  const drawnBoxes = job.vertices.map((one) => {
    const { x, y, height } = boxes.get(one.vertex), group = draw("g", {}, svg);
    const title = draw("title", {}, group);
    const rect = draw("rect", { x, y, width: BOX.width, height, rx: 6 }, group);
    return { title, rect, how: draw("text", { x: x + 10, y: y + 17, class: "soft" }, group) };
  });
  const feeds = new Map(job.edges.filter((edge) => edge.is_chained)
    .map((edge) => [edge.target, edge.source]));
  const rows = job.operators.map((one) => {
    const [x, y] = places.get(one.name), group = draw("g", {}, svg);
    const title = draw("title", {}, group);
    const rect = draw("rect", { x: x + 4, y: y - BOX.row / 2, width: BOX.width - 8,
      height: BOX.row, rx: 3, class: "row" }, group);
    const chain = job.vertices.find((each) => each.vertex === one.vertex).operators;
    const before = chain[chain.indexOf(one.name) - 1], feeder = feeds.get(one.name);
    const name = draw("text", { x: x + 10, y: y + 4.5 }, group);
    say(name, cut(one.name, NAME_MAX));
    // In a chain that branches the one above is not always what it reads.
    const branch = feeder && feeder !== before ? `\nreads ${feeder}` : "";
    if (branch) name.setAttribute("x", x + 22);
    return { title, rect, branch,
      rate: draw("text", { x: x + BOX.width - 9, y: y + 4.5, class: "soft rate" }, group) };
  });
  $("graph").replaceChildren(svg);
  return { shape, boxes: drawnBoxes, rows, lines, edges };
}

function graph(job) {
  const shape = JSON.stringify([job.job_id, job.vertices.map((one) => one.operators),
    job.edges.map((edge) => [edge.source, edge.target, edge.is_chained])]);
  if (shape !== drawn.shape) drawn = redraw(job, shape);
  const metrics = new Map(job.vertices.map((vertex) => [vertex.vertex, vertex.metrics]));
  const operators = new Map(job.operators.map((one) => [one.name, one]));
  const failed = failedOne(job), holds = operators.get(holding(job));
  const isOver = ENDED.has(job.state);
  job.edges.filter((edge) => !edge.is_chained).forEach((edge, place) => {
    const { group, title, rate, waits } = drawn.lines[place];
    const source = operators.get(edge.source);
    const isFull = !isOver && mood(metrics.get(source.vertex)) === "pressed";
    group.setAttribute("class", isFull ? "full" : "");
    say(title, edge.blocked_by && !isOver ? `${edge.partitioner}: ${edge.blocked_by}`
      : edge.partitioner);
    say(rate, isOver ? "" : `${fine(edge.num_records_per_second)}/s`);
    say(waits, isOver ? "" : `${number(edge.queued_records)} wait`);
  });
  job.vertices.forEach((one, place) => {
    const { title, rect, how } = drawn.boxes[place];
    const kind = isOver ? "" : mood(one.metrics);
    const hasFailed = failed && failed.vertex === one.vertex;
    const isHolding = holds && holds.vertex === one.vertex;
    rect.setAttribute("class", hasFailed ? "failed" : `${kind} ${isHolding ? "bottleneck" : ""}`);
    say(title, one.name);
    const part = kind ? ` ${number(share(one.metrics, { pressed: "backpressured" }[kind] || kind) / 10)} %` : "";
    say(how, `${one.parallelism} × ${hasFailed ? "failed" : `${doing(job, kind)}${part}`}`);
  });
  job.operators.forEach((one, place) => {
    const { title, rect, rate, branch } = drawn.rows[place];
    rect.setAttribute("class", one === failed ? "row failed" : one === holds ? "row holds" : "row");
    const counts = [one.is_source ? "" : `${number(one.metrics.num_records_in)} in`,
      one.is_sink ? "" : `${number(one.metrics.num_records_out)} out`].filter(Boolean).join(", ");
    say(title, [`${one.name}${one.uid ? ` (${one.uid})` : ""}${branch}`, counts, why(job, one)]
      .filter(Boolean).join("\n"));
    say(rate, isOver ? counts.split(", ").pop()
      : `${fine(one.is_sink ? one.num_records_in_per_second : one.num_records_out_per_second)}/s`);
  });
}

function progress(job) {
  const sources = job.operators.filter((one) => one.is_source);
  const read = sources.reduce((sum, one) => sum + (one.metrics.num_records_out || 0), 0);
  const sizes = sources.map((one) => one.records_expected);
  const total = sizes.every((size) => size != null)
    ? sizes.reduce((sum, size) => sum + size, 0) : null;
  $("progress").hidden = !total;
  if (!total) return;
  $("progress").querySelector("progress").value = Math.min(1, read / total);
  say($("progress").querySelector("span"), `${number(read)} of ${number(total)} rows read`);
}

const watermark = (one) =>
  moment(one.metrics.current_input_watermark ?? one.metrics.current_output_watermark);

// What an operator waits for: of the one that holds the job up what is said above, too.
function why(job, one) {
  if (ENDED.has(job.state)) return "";
  return holding(job) === one.name ? job.bottleneck.why : one.blocked_by;
}

// The sentence begins with the operator, which has a column.
function withoutName(job, one) {
  const text = why(job, one), start = `${one.name} `;
  return text.startsWith(start) ? text.slice(start.length) : text;
}

// How they are when they have ended is their state.
const TASKS = [["task", "cut"], ["state"], ["time", "bar"], ["busy %", "number"],
  ["backpressured %", "number"], ["idle %", "number"], ["waits before", "number"],
  ["outputs %", "number"]];
const CALLS = [["operator", "cut"], ["record", "record"], ["attempt", "number"], ["age, s", "fine"],
  ["waits for"], ["line", "place"]];
const CHECKPOINTS = [["id", "number"], ["kind"], ["ms", "number"], ["size"], ["place", "long"]];
const STALLS = [["operator", "cut"], ["ms", "number"], ["garbage, ms", "number"], ["function"],
  ["line", "place"]];
const FAILURES = [["at (UTC)", "moment"], ["what followed"], ["operator", "cut"], ["error", "record"],
  ["record", "record"], ["line", "place"]];
const JOBS = [["job", "show"], ["state"], ["started (UTC)", "moment"], ["took"], ["restarts", "number"],
  ["failures", "number"], ["last failure", "record"]];

// Columns that no operator has anything for are left out.
const OPERATORS = [
  ["operator", "cut", (one) => one.name],
  ["busy, backpressured", "times", (one) => one.vertex],
  ["in", "flow", (one, now) => one.is_source ? null : [one.metrics.num_records_in,
    `in ${one.name}`, now ? one.num_records_in_per_second : null]],
  ["out", "flow", (one, now) => one.is_sink ? null : [one.metrics.num_records_out,
    `out ${one.name}`, now ? one.num_records_out_per_second : null]],
  ["watermark (UTC)", "moment", watermark],
  ["lag", "ms", (one) => [one.metrics.watermark_lag, `lag ${one.name}`]],
  ["latency, p99", "ms", (one) => [last(`latency ${one.name}`), `latency ${one.name}`]],
  ["in flight", "number", (one) => [one.metrics.in_flight, `in_flight ${one.name}`]],
  ["state", "bytes", (one) => [one.metrics.state_bytes, `state_bytes ${one.name}`]],
  ["keys", "number", (one) => [one.metrics.state_keys, `state_keys ${one.name}`]],
  ["late", "number", (one) => [one.metrics.num_late_records_dropped || null, `late ${one.name}`]],
  ["dead letters", "number", (one) => [one.metrics.dead_letters || null, `dead_letters ${one.name}`]],
  ["skipped", "number", (one) => one.metrics.skipped || null],
  ["stalls", "number", (one) => one.metrics.stalls || null],
  ["hot keys", "keys", (one) => [one.hot_keys.map((key) =>
    `${key.key} ${number(key.share * 100)} %`).join(", "), `hot ${one.name}`]],
];

function last(key) {
  const row = points(key);
  return row.length ? row[row.length - 1][1] : null;
}

const isSaid = (value) => value != null && value !== "";

// More columns fit into wide windows only.
const COLUMNS_MAX = 10;

function operators(job) {
  const now = !ENDED.has(job.state), failed = failedOne(job);
  const all = OPERATORS.toSpliced(1, 0, ["waits for", "long", (one) => withoutName(job, one)]);
  const cells = all.map(([, , read]) => job.operators.map((one) => read(one, now)));
  const isThere = (value, kind) => kind === "times" ? now || points(`busy ${value}`).length > 1
    : Array.isArray(value) ? isSaid(value[0]) || points(value[1]).some((one) => one[1])
      : isSaid(value);
  const shown = all.map((_, place) => place)
    .filter((place) => cells[place].some((value) => isThere(value, all[place][1])));
  table("operators", shown.map((place) => all[place].slice(0, 2)),
    job.operators.map((_, index) => shown.map((place) => cells[place][index])), "There are none.",
    job.operators.map((one) => one === failed ? "failed" : one.name === holding(job) ? "holds" : ""));
  $("operators").classList.toggle("many", shown.length > COLUMNS_MAX);
}

const LINES = [["records in", "in", (n) => `${fine(n)}/s`], ["records out", "out", (n) => `${fine(n)}/s`],
  ["watermark lag", "lag", duration], ["latency, p99", "latency", duration],
  ["calls in flight", "in_flight", number], ["state", "state_bytes", bytes],
  ["keys with state", "state_keys", number], ["checkpoint took", "checkpoint_ms", duration],
  ["checkpoint size", "checkpoint_bytes", bytes], ["late records", "late", number],
  ["dead letters", "dead_letters", number]];

// What there is nothing of in most jobs.
const RARE = new Set(["late", "dead_letters", "in_flight"]);

// Lines of the whole job; those of which nothing is known are left out.
function lines(job) {
  const target = $("lines");
  LINES.forEach(([head, key, format], place) => {
    let node = target.children[place];
    if (!node) {
      node = target.appendChild(document.createElement("div"));
      say(node.appendChild(document.createElement("span")), head);
      node.append(document.createElement("b"));
      draw("svg", {}, node);
    }
    const row = points(`job ${key}`);
    const isShown = row.length > 1 && (!RARE.has(key) || row.some((one) => one[1]));
    node.hidden = !isShown;
    if (!isShown) return;
    say(node.children[1], format(row[row.length - 1][1]));
    line(node.children[2], [row], ["area"], format);
  });
  target.parentNode.hidden = [...target.children].every((node) => node.hidden);
}

function failure(job) {
  const last = lastFailure(job), node = $("failure");
  const isShown = last && ["failed", "failing", "restarting"].includes(job.state);
  node.hidden = !isShown;
  if (!isShown) return;
  say(node.children[0], job.state === "restarting" ? "The job failed, and restarts" : "The job failed");
  say(node.children[1], cause(last.error));
  say(node.children[2], [last.operator && `in operator ${last.operator}${last.uid ? ` (${last.uid})` : ""}`,
    last.line && `at ${last.line}`, last.record && `with record ${last.record}`]
    .filter(Boolean).join(", "));
  const [own, engine] = parted(last.traceback);
  say(node.children[3], own);
  node.children[3].hidden = !own;
  say(node.children[4].lastChild, engine);
  node.children[4].hidden = !engine;
}

function followed(job, one, place) {
  if (place < job.failures.length - 1 || !["failed", "failing"].includes(job.state))
    return job.state === "canceled" && one.restarts >= job.restarts ? "the job was cancelled"
      : `restart ${one.restarts + 1}`;
  return "the job failed";
}

const took = (job) => ENDED.has(job.state) ? duration(job.duration_s * 1000) : seconds(job.duration_s);

function render(job) {
  document.title = `${job.job} – ${job.state}`;
  say($("job"), job.job);
  $("job").title = job.job;
  say($("state"), job.state);
  $("state").className = `state ${job.state}`;
  const again = job.restarts ? `, restarted ${job.restarts === 1 ? "once" : `${job.restarts} times`}` : "";
  const stopped = job.stop_reason ? `, stopped: ${job.stop_reason}` : "";
  say($("facts"), `${took(job)}${again}${stopped}`);
  failure(job);
  $("bottleneck").hidden = !holding(job);
  say($("bottleneck"), holding(job) ? job.bottleneck.why : "");
  progress(job);
  lines(job);
  graph(job);
  operators(job);
  const columns = ENDED.has(job.state) ? 2 : TASKS.length;
  table("tasks", TASKS.slice(0, columns), job.tasks.map((one) => [one.name, one.state, one.metrics,
    share(one.metrics, "busy") / 10, share(one.metrics, "backpressured") / 10,
    share(one.metrics, "idle") / 10, one.metrics.input_queue_records,
    one.metrics.out_pool_usage == null ? null : one.metrics.out_pool_usage * 100]
    .slice(0, columns)), "There are none.");
  for (const button of $("change").querySelectorAll("button")) button.disabled = ENDED.has(job.state);
  table("calls", CALLS, job.operators.flatMap((one) => (one.calls ? one.calls.oldest : [])
    .map((call) => [one.name, call.record, call.attempt, call.age_s, call.waits_for,
      call.line])), "None.");
  const taken = job.checkpoint_metrics;
  say($("checkpoint-facts"), taken.number_of_completed_checkpoints == null ? ""
    : `${number(taken.number_of_completed_checkpoints)} completed, `
      + `${number(taken.number_of_failed_checkpoints)} failed, `
      + `${number(taken.number_of_in_progress_checkpoints)} in progress`);
  table("checkpoints", CHECKPOINTS, job.checkpoints.slice().reverse().map((one) => [
    one.checkpoint_id, one.kind, one.duration_ms, bytes(one.size_bytes), one.place]), "None.");
  table("stalls", STALLS, job.stalls.slice().reverse().map((one) => [one.operator || "(none)",
    one.duration_ms, one.gc_ms, one.function, one.line]), "None.");
  table("failures", FAILURES, job.failures.map((one, place) => [moment(one.at_ms),
    followed(job, one, place), one.operator, cause(one.error), one.record, one.line]).reverse(), "None.");
}

const asked = (path) => `${path}${path.includes("?") ? "&" : "?"}job=${shownJob ?? ""}`;

let isAsking = false;

async function recent() {
  if (isAsking || shownJob == null) return;
  isAsking = true;
  const number = shownJob;
  if (kept.job !== number) kept = { job: number, last: 0, series: new Map() };
  try {
    const answer = await fetch(asked(`history?since=${Math.floor(kept.last)}`));
    if (answer.ok && number === shownJob) keep(await answer.json());
  } catch {
    // The connection says so, too.
  }
  isAsking = false;
}

let treeText = "";

async function tree() {
  if (!$("tree").open) return;
  try {
    const answer = await fetch(asked("await-tree?format=json"));
    const text = await answer.text();
    if (!answer.ok || text === treeText) return;
    treeText = text;
    showTree(JSON.parse(text));
  } catch {
    // The connection says so, too.
  }
}

// Frames of the engine are folded, each run of them into one line.
function showTree(rows) {
  const open = new Set([...$("waits").querySelectorAll("details[open]")].map((one) => one.dataset.place));
  const nodes = [];
  let fold = null;
  for (const [text, isEngine] of rows) {
    const node = document.createElement("div");
    node.textContent = text;
    if (!isEngine) {
      fold = null;
      nodes.push(node);
      continue;
    }
    if (!fold) {
      fold = document.createElement("details");
      fold.dataset.place = nodes.length;
      fold.open = open.has(fold.dataset.place);
      fold.append(document.createElement("summary"));
      nodes.push(fold);
    }
    fold.append(node);
    const count = fold.children.length - 1;
    fold.firstChild.textContent = `    ${count} line${count > 1 ? "s" : ""} of the engine`;
  }
  $("waits").replaceChildren(...nodes);
}

const QUESTIONS = {
  stop: (job) => [`Stop ${job}? Its sources read no more, and what they have read is processed.`, "Stop it"],
  cancel: (job) => [`Cancel ${job}? What it has not committed is lost.`, "Cancel it"],
  savepoint: (job, path) => [`Take a savepoint of ${job} in ${path}?`, "Take it"],
};
let wanted = null;

function ask(event) {
  const what = event.currentTarget.value, path = $("path").value;
  if (what === "savepoint" && !path) {
    say($("answer"), "Enter the directory of the savepoint.");
    return;
  }
  const [question, yes] = QUESTIONS[what]($("job").textContent, path);
  // Of the job that is shown now, whichever is shown when it is confirmed.
  wanted = asked(what === "savepoint" ? `savepoint?path=${encodeURIComponent(path)}` : what);
  say($("answer"), "");
  say($("sure").firstChild, question);
  say($("yes"), yes);
  $("sure").showModal();
  $("no").focus();
}

async function change() {
  $("sure").close();
  say($("answer"), "…");
  try {
    const headers = { authorization: `Bearer ${$("token").value}` };
    const answer = await fetch(wanted, { method: "POST", headers });
    say($("answer"), answer.ok ? "Done." : await answer.text());
  } catch (error) {
    say($("answer"), `It could not be asked: ${error.message}`);
  }
}

function connection(text) {
  say($("connection"), text);
  $("connection").className = text ? "lost" : "";
}

let updates = 0;
let lost = 0;
let askedAt = 0;
let shownJob = null;
let events = null;

function connected() {
  clearTimeout(lost);
  lost = 0;
  connection("");
}

function jobs(told) {
  shownJob = told.shown;
  const choice = $("choice");
  $("chooser").hidden = told.jobs.length < 2;
  while (choice.options.length > told.jobs.length) choice.remove(choice.options.length - 1);
  told.jobs.forEach((one, place) => {
    if (!choice.options[place]) choice.append(document.createElement("option"));
    choice.options[place].value = one.number;
    say(choice.options[place], `${cut(one.job, 40)} – ${one.state}`);
  });
  choice.value = told.shown;
  table("jobs", JOBS, told.jobs.map((one) => [one, one.state, moment(one.started_ms).slice(0, 19),
    one.duration_s == null ? "" : took(one), one.restarts, one.failures, cause(one.error || "")]),
    "None.", told.jobs.map((one) => one.number === told.shown ? "shown" : ""));
}

function listen() {
  // The one that was chosen, or the last one that was started.
  const chosen = location.hash.slice(1);
  events = new EventSource(`events?job=${encodeURIComponent(chosen)}`);
  const mine = events;
  mine.addEventListener("waiting", () => {
    connected();
    // A program that was started again has other jobs.
    if (chosen) location.hash = "";
    else say($("state"), "no job yet");
  });
  mine.addEventListener("changeable", () => { $("change").hidden = false; });
  mine.addEventListener("jobs", (event) => jobs(JSON.parse(event.data)));
  mine.onmessage = (event) => {
    connected();
    if (performance.now() - askedAt > 2500 || kept.job !== shownJob) {
      askedAt = performance.now();
      recent();
    }
    render(JSON.parse(event.data));
    if (updates++ % 2 === 0) tree();
  };
  mine.onerror = () => {
    // Each stream ends after some seconds, and the browser asks for the next one.
    lost ||= setTimeout(() => connection("no connection"), 3000);
    // It does so by itself, but not where it was refused.
    if (mine.readyState === EventSource.CLOSED && mine === events)
      setTimeout(() => { if (mine === events) listen(); }, 2000);
  };
}

$("tree").addEventListener("toggle", tree);
// Enter in a field does nothing.
$("change").querySelector("form").addEventListener("submit", (event) => event.preventDefault());
for (const button of $("change").querySelectorAll("button")) button.addEventListener("click", ask);
$("yes").addEventListener("click", change);
$("no").addEventListener("click", () => $("sure").close());
$("jobs").addEventListener("click", (event) => {
  if (event.target.value) location.hash = event.target.value;
});
$("choice").addEventListener("change", (event) => { location.hash = event.target.value; });
window.addEventListener("hashchange", () => {
  events.close();
  treeText = "";
  listen();
});
listen();

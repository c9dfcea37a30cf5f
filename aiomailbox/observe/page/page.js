"use strict";
// All text of the job goes through textContent: names and records are anybody's. What is
// there already is changed and not made again, so that it can be selected and read.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const number = (n) => n == null ? "" : Math.round(n).toLocaleString("en");
const fine = (n) => n == null ? "" : n > 0 && n < 10 ? n.toFixed(1) : number(n);
const seconds = (s) => {
  const whole = Math.round(s), m = Math.floor(whole / 60), h = Math.floor(m / 60);
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

// What does not fit is told where the pointer is.
const RECORD = 110;
const short = {
  place: (text) => text.split("/").slice(-2).join("/"),
  record: (text) => text.length > RECORD ? `${text.slice(0, RECORD)}…` : text,
};

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

// A column is its head, and how its cells look: "number", "fine" (with a digit more),
// "long", "record" (cut), "place" (of a line), "bar", or nothing.
function table(id, columns, rows, none) {
  const target = $(id), body = target.tBodies[0] || target.createTBody();
  if (!target.tHead) {
    const line = target.createTHead().insertRow();
    for (const [head, kind] of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = kind === "number" || kind === "fine" ? "number" : "";
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
    row.forEach((value, place) => {
      const kind = columns[place][1] || "";
      const cell = line.cells[place] || line.insertCell();
      if (kind === "bar") bar(cell, value);
      else if (short[kind]) {
        cell.className = kind;
        cell.title = value || "";
        say(cell, short[kind](value || ""));
      } else {
        cell.className = kind === "fine" ? "number" : kind;
        say(cell, kind === "number" ? number(value) : kind === "fine" ? fine(value) : value);
      }
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

const BOX = { width: 168, height: 62, across: 26 };
let drawn = { shape: "", boxes: [], lines: [] };

function layout(job) {
  const depth = new Map(job.operators.map((one) => [one.name, 0]));
  // The operators come in topological order.
  for (const one of job.operators)
    for (const edge of job.edges)
      if (edge.source === one.name)
        depth.set(edge.target, Math.max(depth.get(edge.target), depth.get(one.name) + 1));
  const columns = [], row = new Map();
  for (const one of job.operators) {
    const column = depth.get(one.name);
    (columns[column] ||= []).push(one.name);
  }
  // In a column each is about where its sources are, so that fewer lines cross.
  const height = (name) => {
    const from = job.edges.filter((edge) => edge.target === name);
    return from.reduce((sum, edge) => sum + row.get(edge.source), 0) / (from.length || 1);
  };
  for (const column of columns)
    column.sort((one, other) => height(one) - height(other))
      .forEach((name, place) => row.set(name, place));
  const rows = columns.map((column) => column.length);
  // Where nothing waits between two columns there is less to be said.
  const gaps = rows.map((_, column) => job.edges.some((edge) =>
    !edge.is_chained && depth.get(edge.source) === column) ? 96 : 66);
  const left = rows.map((_, column) => 4 + column * BOX.width
    + gaps.slice(0, column).reduce((sum, gap) => sum + gap, 0));
  const step = BOX.height + BOX.across, most = Math.max(...rows);
  const place = (name) => {
    const column = depth.get(name);
    return [left[column], 16 + ((most - rows[column]) / 2 + row.get(name)) * step];
  };
  // A line over several columns passes below the boxes between its ends.
  const bottoms = rows.map((count) => 16 + ((most - count) / 2 + count) * step - BOX.across);
  const lane = (edge) => {
    const from = depth.get(edge.source) + 1, to = depth.get(edge.target) - 1;
    if (from > to) return null;
    const y = Math.max(...bottoms.slice(from, to + 1)) + BOX.across;
    bottoms.fill(y + 18, from, to + 1);
    return [left[from], left[to] + BOX.width, y];
  };
  const lanes = job.edges.map(lane);
  return { place, lanes, width: left[left.length - 1] + BOX.width + 4,
    height: Math.max(...bottoms) + 8 };
}

function curve(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2} `;
}

function redraw(job, shape) {
  const { place, lanes, width, height } = layout(job);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  // Smaller than this it scrolls.
  svg.style.minWidth = `${Math.round(width * 0.8)}px`;
  const lines = job.edges.map((edge, index) => {
    const [x1, y1] = place(edge.source), [x2, y2] = place(edge.target);
    const a = x1 + BOX.width, b = y1 + BOX.height / 2, d = y2 + BOX.height / 2;
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
  const boxes = job.operators.map((one) => {
    const [x, y] = place(one.name), group = draw("g", {}, svg);
    const title = draw("title", {}, group);
    const rect = draw("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6 }, group);
    const text = (dy, name) => draw("text", { x: x + 10, y: y + dy, class: name }, group);
    const name = text(20, "");
    say(name, one.name.length > 22 ? `${one.name.slice(0, 21)}…` : one.name);
    return { title, rect, records: text(37, "soft"), how: text(53, "soft") };
  });
  $("graph").replaceChildren(svg);
  return { shape, boxes, lines };
}

function graph(job) {
  const shape = JSON.stringify([job.job_id, job.operators.map((one) => one.name),
    job.edges.map((edge) => [edge.source, edge.target, edge.is_chained])]);
  if (shape !== drawn.shape) drawn = redraw(job, shape);
  const metrics = new Map(job.vertices.map((vertex) => [vertex.vertex, vertex.metrics]));
  const operators = new Map(job.operators.map((one) => [one.name, one]));
  job.edges.forEach((edge, place) => {
    const { group, title, rate, waits } = drawn.lines[place];
    const source = operators.get(edge.source), target = operators.get(edge.target);
    const isFull = !edge.is_chained && mood(metrics.get(source.vertex)) === "pressed";
    group.setAttribute("class", isFull ? "full" : "");
    say(title, `${edge.partitioner}: ${edge.blocked_by}`);
    say(rate, `${fine(edge.is_chained ? target.num_records_in_per_second
      : edge.num_records_per_second)}/s`);
    say(waits, edge.is_chained ? "" : `${number(edge.queued_records)} wait`);
  });
  job.operators.forEach((one, place) => {
    const { title, rect, records, how } = drawn.boxes[place];
    const kind = mood(metrics.get(one.vertex));
    const isHolding = job.bottleneck && job.bottleneck.operator === one.name;
    rect.setAttribute("class", `${kind} ${isHolding ? "bottleneck" : ""}`);
    say(title, `${one.name}${one.uid ? ` (${one.uid})` : ""}\n${one.blocked_by}`);
    const out = `${number(one.metrics.num_records_out)} out`;
    const into = `${number(one.metrics.num_records_in)} in`;
    say(records, one.is_source ? out : one.is_sink ? into : `${into}, ${out}`);
    const doing = { pressed: "backpressured" }[kind] || kind || "not there yet";
    const calls = one.calls ? `, ${one.calls.count} calls` : "";
    say(how, `${one.parallelism} × ${doing}${calls}`);
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

// The sentence begins with the operator, which has a column.
const withoutName = (one) => one.blocked_by.startsWith(`${one.name} waits for `)
  ? one.blocked_by.slice(one.name.length + 11) : one.blocked_by;

const OPERATORS = [["operator"], ["in", "number"], ["in/s", "fine"], ["out", "number"],
  ["out/s", "fine"], ["watermark"], ["in flight", "number"], ["dead letters", "number"],
  ["skipped", "number"], ["stalls", "number"], ["waits for", "long"]];
const TASKS = [["task", "long"], ["state"], ["time", "bar"], ["busy %", "number"],
  ["backpressured %", "number"], ["idle %", "number"], ["waits before", "number"],
  ["outputs %", "number"]];
const CALLS = [["operator"], ["record", "record"], ["attempt", "number"], ["age, s", "fine"],
  ["waits for"], ["line", "place"]];
const CHECKPOINTS = [["id", "number"], ["kind"], ["ms", "number"], ["size"], ["place", "long"]];
const STALLS = [["operator"], ["ms", "number"], ["garbage, ms", "number"], ["function"],
  ["line", "place"]];
const FAILURES = [["at"], ["operator"], ["error", "long"], ["record", "record"],
  ["line", "place"]];

function render(job) {
  document.title = `${job.job} – ${job.state}`;
  say($("job"), job.job);
  say($("state"), job.state);
  $("state").className = `state ${job.state}`;
  const again = job.restarts ? `, started again ${job.restarts} times` : "";
  const why = job.stop_reason ? `, stopped: ${job.stop_reason}` : "";
  say($("facts"), `${seconds(job.duration_s)}${again}${why}`);
  $("bottleneck").hidden = !job.bottleneck;
  say($("bottleneck"), job.bottleneck ? job.bottleneck.why : "");
  progress(job);
  graph(job);
  table("operators", OPERATORS, job.operators.map((one) => [one.name,
    one.metrics.num_records_in, one.is_source ? null : one.num_records_in_per_second,
    one.is_sink ? null : one.metrics.num_records_out,
    one.is_sink ? null : one.num_records_out_per_second, watermark(one),
    one.metrics.in_flight, one.metrics.dead_letters, one.metrics.skipped,
    one.metrics.stalls, withoutName(one)]));
  table("tasks", TASKS, job.tasks.map((one) => [one.name, one.state, one.metrics,
    share(one.metrics, "busy") / 10, share(one.metrics, "backpressured") / 10,
    share(one.metrics, "idle") / 10, one.metrics.input_queue_records,
    one.metrics.out_pool_usage == null ? null : one.metrics.out_pool_usage * 100]),
    "There are none.");
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
  table("failures", FAILURES, job.failures.slice().reverse().map((one) => [moment(one.at_ms),
    one.operator, one.error, one.record, one.line]), "None.");
}

async function tree() {
  if (!$("tree").open) return;
  try {
    const answer = await fetch("await-tree");
    say($("tree").querySelector("pre"), await answer.text());
  } catch {
    // The connection says so, too.
  }
}

async function change(event) {
  event.preventDefault();
  const what = event.submitter.value;
  const path = what === "savepoint" ? `?path=${encodeURIComponent($("path").value)}` : "";
  say($("answer"), "…");
  try {
    const headers = { authorization: `Bearer ${$("token").value}` };
    const answer = await fetch(what + path, { method: "POST", headers });
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

function connected() {
  clearTimeout(lost);
  lost = 0;
  connection("");
}

function listen() {
  const events = new EventSource("events");
  events.addEventListener("waiting", () => {
    connected();
    say($("state"), "no job yet");
  });
  events.addEventListener("changeable", () => { $("change").hidden = false; });
  events.onmessage = (event) => {
    connected();
    render(JSON.parse(event.data));
    if (updates++ % 2 === 0) tree();
  };
  events.onerror = () => {
    // Each stream ends after some seconds, and the browser asks for the next one.
    lost ||= setTimeout(() => connection("no connection"), 3000);
    // It does so by itself, but not where it was refused.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
}

$("tree").addEventListener("toggle", tree);
$("change").querySelector("form").addEventListener("submit", change);
listen();

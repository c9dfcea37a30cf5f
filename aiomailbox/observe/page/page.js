"use strict";
// All text of the job goes through textContent: names and records are anybody's.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const number = (n) => n == null ? "" : Math.round(n).toLocaleString("en");
const seconds = (s) => {
  const whole = Math.round(s), m = Math.floor(whole / 60), h = Math.floor(m / 60);
  return h ? `${h} h ${m % 60} min` : m ? `${m} min ${whole % 60} s` : `${whole} s`;
};
// Beyond what JavaScript holds exactly are the first and the last watermark.
const moment = (ms) => ms == null || Math.abs(ms) > 8e15 ? ""
  : new Date(ms).toISOString().replace("T", " ").replace("Z", "");

function make(kind, text, name, parent) {
  const node = document.createElement(kind);
  if (text != null) node.textContent = text;
  if (name) node.className = name;
  if (parent) parent.append(node);
  return node;
}

function draw(kind, attributes, parent, text) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text != null) node.textContent = text;
  parent.append(node);
  return node;
}

function table(id, heads, rows, none) {
  const target = $(id), head = document.createElement("tr"), body = [];
  for (const [text, kind] of heads) make("th", text, kind === "number" ? kind : "", head);
  for (const row of rows) {
    const line = document.createElement("tr");
    row.forEach((cell, place) => {
      const kind = heads[place][1] || "";
      if (cell instanceof Node) { const td = make("td", null, kind, line); td.append(cell); }
      else make("td", kind === "number" ? number(cell) : cell, kind, line);
    });
    body.push(line);
  }
  if (!rows.length) {
    const line = document.createElement("tr");
    const cell = make("td", none, "none", line);
    cell.colSpan = heads.length;
    body.push(line);
  }
  target.replaceChildren(...(rows.length ? [head] : []), ...body);
}

function mood(metrics) {
  const busy = metrics.busy_time_ms_per_second || 0;
  const pressed = metrics.backpressured_time_ms_per_second || 0;
  const idle = metrics.idle_time_ms_per_second || 0;
  if (busy + pressed + idle === 0) return "";
  if (pressed >= busy && pressed >= idle) return "pressed";
  return busy >= idle ? "busy" : "idle";
}

function bar(metrics) {
  const node = make("span", null, "bar");
  const parts = [["busy", "busy"], ["backpressured", "pressed"], ["idle", "idle"]];
  for (const [name, kind] of parts) {
    const share = (metrics[`${name}_time_ms_per_second`] || 0) / 10;
    const part = make("i", null, kind, node);
    part.style.width = `${share}%`;
    part.title = `${name} ${share.toFixed(0)} %`;
  }
  return node;
}

function graph(job) {
  const ofVertex = new Map(job.vertices.map((vertex) => [vertex.vertex, vertex]));
  const depth = new Map(job.operators.map((one) => [one.name, 0]));
  // The operators come in topological order.
  for (const one of job.operators)
    for (const edge of job.edges)
      if (edge.source === one.name)
        depth.set(edge.target, Math.max(depth.get(edge.target), depth.get(one.name) + 1));
  const columns = new Map(), place = new Map();
  for (const one of job.operators) {
    const column = depth.get(one.name);
    const row = columns.get(column) || 0;
    columns.set(column, row + 1);
    place.set(one.name, [column, row]);
  }
  const w = 178, h = 62, gapX = 96, gapY = 26;
  const rows = Math.max(1, ...columns.values());
  const width = columns.size * (w + gapX) - gapX + 8, height = rows * (h + gapY) - gapY + 26;
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, document.createElement("div"));
  const at = (name) => {
    const [column, row] = place.get(name);
    const spare = (rows - columns.get(column)) * (h + gapY) / 2;
    return [4 + column * (w + gapX), 16 + spare + row * (h + gapY)];
  };
  for (const edge of job.edges) {
    const [x1, y1] = at(edge.source), [x2, y2] = at(edge.target);
    const a = x1 + w, b = y1 + h / 2, c = x2, d = y2 + h / 2, m = (a + c) / 2;
    const line = draw("path", { d: `M${a} ${b} C${m} ${b} ${m} ${d} ${c - 5} ${d} M${c - 10} ${d - 4} L${c - 4} ${d} L${c - 10} ${d + 4}` }, svg);
    if (edge.queued_records > 1000) line.classList.add("full");
    draw("title", {}, line, `${edge.partitioner}: ${edge.blocked_by}`);
    const rate = edge.is_chained ? operatorRate(job, edge.target) : edge.num_records_per_second;
    draw("text", { x: m, y: Math.min(b, d) + Math.abs(b - d) / 2 - 9, "text-anchor": "middle", class: "soft" }, svg, `${number(rate)}/s`);
    if (!edge.is_chained)
      draw("text", { x: m, y: (b + d) / 2 + 15, "text-anchor": "middle", class: "soft" }, svg, `${number(edge.queued_records)} wait`);
  }
  for (const one of job.operators) {
    const [x, y] = at(one.name), metrics = ofVertex.get(one.vertex).metrics;
    const box = draw("rect", { x, y, width: w, height: h, rx: 6 }, svg);
    const kind = mood(metrics);
    if (kind) box.classList.add(kind);
    if (job.bottleneck && job.bottleneck.operator === one.name) box.classList.add("bottleneck");
    draw("title", {}, box, `${one.name}${one.uid ? ` (${one.uid})` : ""}\n${one.blocked_by}`);
    const name = one.name.length > 23 ? `${one.name.slice(0, 22)}…` : one.name;
    draw("text", { x: x + 10, y: y + 20 }, svg, name);
    draw("text", { x: x + 10, y: y + 37, class: "soft" }, svg, one.is_source ? `${number(one.metrics.num_records_out)} out`
      : `${number(one.metrics.num_records_in)} in, ${number(one.metrics.num_records_out)} out`);
    const calls = one.calls ? `, ${one.calls.count} calls` : "";
    draw("text", { x: x + 10, y: y + 53, class: "soft" }, svg, `${one.parallelism} × ${kind || "waiting"}${calls}`);
  }
  $("graph").replaceChildren(svg);
}

const operatorRate = (job, name) =>
  job.operators.find((one) => one.name === name).num_records_in_per_second;

function watermark(one) {
  const value = one.metrics.current_input_watermark ?? one.metrics.current_output_watermark;
  return moment(value);
}

function render(job) {
  document.title = `${job.job} – ${job.state}`;
  $("job").textContent = job.job;
  $("state").textContent = job.state;
  $("state").className = `state ${job.state}`;
  const again = job.restarts ? `, started again ${job.restarts} times` : "";
  $("facts").textContent = `${seconds(job.duration_s)}${again}`;
  $("bottleneck").hidden = !job.bottleneck;
  $("bottleneck").textContent = job.bottleneck ? job.bottleneck.why : "";
  graph(job);
  table("operators", [["operator"], ["in", "number"], ["in/s", "number"], ["out", "number"],
    ["out/s", "number"], ["watermark"], ["in flight", "number"], ["dead letters", "number"],
    ["skipped", "number"], ["stalls", "number"], ["waits for", "long"]],
    job.operators.map((one) => [one.name, one.metrics.num_records_in,
      one.is_source ? null : one.num_records_in_per_second, one.metrics.num_records_out,
      one.num_records_out_per_second, watermark(one), one.metrics.in_flight,
      one.metrics.dead_letters, one.metrics.skipped, one.metrics.stalls, one.blocked_by]));
  table("tasks", [["task"], ["state"], ["time"], ["busy %", "number"],
    ["backpressured %", "number"], ["idle %", "number"], ["waits before", "number"],
    ["outputs %", "number"]],
    job.tasks.map((one) => [one.name, one.state, bar(one.metrics),
      one.metrics.busy_time_ms_per_second / 10,
      one.metrics.backpressured_time_ms_per_second / 10,
      one.metrics.idle_time_ms_per_second / 10, one.metrics.input_queue_records,
      one.metrics.out_pool_usage == null ? null : one.metrics.out_pool_usage * 100]),
    "There are none yet.");
  const calls = job.operators.flatMap((one) => (one.calls ? one.calls.oldest : [])
    .map((call) => [one.name, call.record, call.attempt, call.age_s, call.waits_for, call.line]));
  table("calls", [["operator"], ["record", "long"], ["attempt", "number"], ["age, s", "number"],
    ["waits for"], ["line", "long"]], calls, "None.");
  table("checkpoints", [["id", "number"], ["kind"], ["ms", "number"], ["bytes", "number"],
    ["place", "long"]], job.checkpoints.slice().reverse().map((one) => [one.checkpoint_id,
      one.kind, one.duration_ms, one.size_bytes, one.place]), "None.");
  table("stalls", [["operator"], ["ms", "number"], ["garbage, ms", "number"], ["function"],
    ["line", "long"]], job.stalls.slice().reverse().map((one) => [one.operator || "(none)",
      one.duration_ms, one.gc_ms, one.function, one.line]), "None.");
  table("failures", [["at"], ["operator"], ["error", "long"], ["record", "long"], ["line", "long"]],
    job.failures.slice().reverse().map((one) => [moment(one.at_ms), one.operator || "",
      one.error, one.record || "", one.line || ""]), "None.");
}

async function tree() {
  if (!$("tree").open) return;
  const answer = await fetch("await-tree");
  $("tree").querySelector("pre").textContent = await answer.text();
}

$("tree").addEventListener("toggle", tree);
let updates = 0;
const events = new EventSource("events");
events.onmessage = (event) => {
  $("connection").textContent = "";
  $("connection").className = "";
  render(JSON.parse(event.data));
  if (updates++ % 2 === 0) tree();
};
events.onerror = () => {
  $("connection").textContent = "no connection";
  $("connection").className = "lost";
};
window.render = render;

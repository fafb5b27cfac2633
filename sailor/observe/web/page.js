"use strict";
// Draws the documents that the run's page is sent (facts.py). Whatever comes from the run is set as
// text, never as markup. The clocks move between documents; nothing else is worked out here.

const SVG = "http://www.w3.org/2000/svg";
const MARKS = { "!": "s-bad", "+": "s-new", ">": "s-go", "~": "s-own" };
const $ = (id) => document.getElementById(id);

let doc = null; // the newest document
let heardAt = 0; // when it came, by performance.now()
let shown = null; // generation whose layout is looked at; null: the newest

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function draw(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

const whole = (n) => Number(n).toLocaleString("en");
const now = () => doc.now + (doc.moving ? (performance.now() - heardAt) / 1000 : 0);

function head() {
  $("run").textContent = doc.run || "A run that has not begun";
  document.title = `${doc.total_steps ? Math.floor((100 * doc.step) / doc.total_steps) + "% " : ""}${doc.run} – Sailor`;
  $("status").textContent = doc.status;
  $("status").className = `chip ${doc.status}`;
  $("model").textContent = doc.model ? `${doc.model}, ${doc.parameters} parameters` : "";
  $("bar").max = Math.max(1, doc.total_steps);
  $("bar").value = doc.step;
  $("steps").textContent = `step ${whole(doc.step)} of ${whole(doc.total_steps)}`;
  $("doing").textContent = doc.doing;
  $("tiles").replaceChildren(
    ...doc.tiles.map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, value)))
  );
}

function clocks() {
  if (!doc) return;
  $("for").textContent = doc.moving ? "running for" : "ran for";
  $("clock").textContent = clock(doc.elapsed_s + now() - doc.now);
  $("durable").textContent = doc.durable
    ? `saved: step ${whole(doc.durable.step)}${doc.moving ? `, ${clock(now() - doc.durable.t)} ago` : ""}`
    : "saved: not yet";
}

// The layout: machines x GPUs. A worker is called machine/gpu.incarnation.
function layout() {
  const all = doc.layouts;
  const newest = all.length - 1;
  let at = all.findIndex((one) => one.generation === shown);
  if (at < 0) at = newest;
  const current = all[at];
  $("earlier").disabled = at <= 0;
  $("later").disabled = at >= newest;
  $("which").textContent = current
    ? at === newest ? `layout ${current.generation}, the newest` : `layout ${current.generation} of ${all[newest].generation}`
    : "no layout yet";
  $("layout-words").textContent = current
    ? `${current.layout}, from ${clock(current.t)} on, after step ${whole(current.step)}`
    : "Machines are still coming.";
  const by = document.querySelector("input[name=colour]:checked").value;
  const seats = new Map();
  const groups = new Map();
  for (const [worker, replica, stage, tensor] of current ? current.seats : []) {
    const [machine, rest] = worker.split("/");
    const tensorGroup = `${replica}.${stage}`;
    if (!groups.has(tensorGroup)) groups.set(tensorGroup, groups.size);
    const group = { stage, replica, tensor: groups.get(tensorGroup) }[by];
    if (!seats.has(machine)) seats.set(machine, []);
    seats.get(machine).push({ gpu: (rest || "0").split(".")[0], replica, stage, tensor, group });
  }
  const known = new Map(doc.nodes.map((one) => [one.node, one]));
  const names = at === newest
    ? [...new Set([...doc.nodes.map((one) => one.node), ...seats.keys()])]
    : [...seats.keys()];
  $("machines").replaceChildren(...names.map((name) => {
    const one = known.get(name) || { zone: "", state: "gone", machine: "" };
    const mine = seats.get(name) || [];
    const gpus = mine.map((seat) => node(
      "div", { class: `gpu seat-${seat.group % 8}`, title: `GPU ${seat.gpu}` },
      `stage ${seat.stage}`,
      node("small", {}, `replica ${seat.replica}${doc.wide || seat.tensor ? `, tp ${seat.tensor}` : ""}`)
    ));
    if (!gpus.length) gpus.push(node("div", { class: "gpu idle" }, "no seat"));
    return node(
      "li", { class: one.state, "data-node": name },
      node("b", {}, name), " ", node("span", { class: `soft state-${one.state}` }, one.state),
      node("div", { class: "where" }, [one.zone, one.machine].filter(Boolean).join(", ")),
      node("div", { class: "gpus" }, ...gpus)
    );
  }));
  const word = { stage: "stage", replica: "replica", tensor: "tensor group" }[by];
  const used = [...new Set([...seats.values()].flat().map((seat) => seat.group))].sort((a, b) => a - b);
  $("legend").replaceChildren(...used.slice(0, 16).map((group) =>
    node("li", {}, node("span", { class: `key seat-${group % 8}` }), `${word} ${group}`)));
}

function ticks(low, high, most, steps) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = (steps || [1, 2, 5, 10].map((f) => f * power)).find((s) => s >= rough * 0.999) || rough;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function width(id) {
  return Math.max(280, Math.round($(id).clientWidth));
}

function timeline() {
  const wide = width("timeline");
  const [left, right, high] = [4, 4, 96];
  const end = Math.max(now(), 1);
  const x = (t) => left + (Math.min(t, end) / end) * (wide - left - right);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": `timeline of ${clock(end)} with ${doc.layouts.length} layouts and ${doc.pauses.length} pauses` });
  doc.layouts.forEach((one, i) => {
    const until = i + 1 < doc.layouts.length ? doc.layouts[i + 1].t : end;
    const w = Math.max(1, x(until) - x(one.t) - 1);
    svg.append(draw("rect", { class: i % 2 ? "band-b" : "band-a", x: x(one.t), y: 30, width: w, height: 26, rx: 3 },
      draw("title", {}, `${one.layout}, after step ${one.step}`)));
    const text = one.layout.replaceAll(" x ", " ");
    if (w > text.length * 7) svg.append(draw("text", { class: "onband", x: x(one.t) + 6, y: 47 }, text));
  });
  for (const pause of doc.pauses) {
    svg.append(draw("rect", { class: "paused", x: x(pause.t - pause.seconds), y: 58,
      width: Math.max(2, x(pause.t) - x(pause.t - pause.seconds)), height: 8 },
      draw("title", {}, `pause of ${pause.seconds.toFixed(2)} s: ${pause.cause}`)));
  }
  const signs = draw("g", { class: "signs" });
  const taken = [-1e9, -1e9]; // where the last sign of each of two rows is
  for (const [t, sign, text] of doc.lines) {
    if (!["!", "+", "~"].includes(sign)) continue;
    const row = x(t) - taken[0] > 9 ? 0 : 1;
    if (row && x(t) - taken[1] < 9) continue;
    taken[row] = x(t);
    signs.append(draw("text", { class: MARKS[sign], x: Math.min(wide - 8, Math.max(8, x(t))), y: row ? 25 : 11 },
      sign, draw("title", {}, `${clock(t)} ${text}`)));
  }
  svg.append(signs, draw("line", { class: "axis", x1: left, x2: wide - right, y1: 72, y2: 72 }));
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  for (const t of ticks(0, end, Math.max(3, wide / 110), steps)) {
    const anchor = x(t) < 20 ? "start" : x(t) > wide - 24 ? "end" : "middle";
    svg.append(draw("line", { class: "axis", x1: x(t), x2: x(t), y1: 72, y2: 76 }),
      draw("text", { class: "tick", x: x(t), y: 90, "text-anchor": anchor }, clock(t)));
  }
  $("timeline").replaceChildren(svg);
}

function loss() {
  const points = doc.loss;
  if (!points.length) {
    $("loss").replaceChildren(node("p", { class: "soft" }, "No step is done yet."));
    return;
  }
  const wide = width("loss");
  const [left, right, top, bottom, high] = [46, 8, 12, 24, 220];
  const ys = [...points, ...doc.held_out].map((p) => p[1]);
  const [lo, hi] = [Math.min(...ys), Math.max(...ys)];
  const pad = (hi - lo) * 0.05 || 0.5;
  const last = Math.max(points[points.length - 1][0], 1);
  const x = (s) => left + (s / last) * (wide - left - right);
  const y = (v) => top + ((hi + pad - v) / (hi - lo + 2 * pad)) * (high - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": `loss, ${points[points.length - 1][1].toFixed(3)} after step ${last}` });
  for (const v of ticks(lo - pad, hi + pad, 5)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: wide - right, y1: y(v), y2: y(v) }),
      draw("text", { class: "tick", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, String(+v.toPrecision(3))));
  }
  for (const s of ticks(0, last, Math.max(3, wide / 120))) {
    const anchor = x(s) > wide - 30 ? "end" : "middle";
    svg.append(draw("text", { class: "tick", x: x(s), y: high - 6, "text-anchor": anchor },
      s === 0 ? "step 0" : whole(s)));
  }
  svg.append(draw("path", { class: "train",
    d: points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join("") }));
  for (const [s, v] of doc.held_out) {
    svg.append(draw("circle", { class: "held", cx: x(s), cy: y(v), r: 3.5 },
      draw("title", {}, `held-out loss after step ${s}: ${v}`)));
  }
  $("loss").replaceChildren(svg);
}

function times() {
  const share = (s) => `${(100 * s).toFixed(1)}%`;
  $("time-bar").setAttribute("aria-label", doc.time.map((p) => `${p.name} ${share(p.share)}`).join(", "));
  $("time-bar").replaceChildren(...doc.time.map((part) => {
    const made = node("div", { class: part.style, title: `${part.name}: ${share(part.share)}` });
    made.style.width = share(part.share);
    return made;
  }));
  $("time").replaceChildren(...doc.time.map((part) => node("li", {},
    node("span", { class: `key ${part.style}` }), `${part.name} ${share(part.share)}, ${part.seconds}`)));
}

function machines() {
  const cell = (name, text, attributes = {}) =>
    node("td", name ? { "data-name": name, ...attributes } : attributes, text);
  $("nodes").replaceChildren(...doc.nodes.map((one) => node("tr", {},
    cell("", `${one.node}${one.machine ? `, ${one.machine}` : ""}`),
    cell("", `${one.zone}${one.terms === "spot" ? ", spot" : ""}`),
    cell("", one.state, { class: `state-${one.state}` }),
    cell("up", one.up), cell("price", one.price), cell("cost", one.cost),
    cell("", one.last.text ? `${clock(one.last.t)} ${one.last.text}` : ""))));
}

function lines() {
  $("lines").replaceChildren(...[...doc.lines].reverse().map(([t, sign, text]) => node("li", {},
    node("time", {}, clock(t)), node("span", { class: `sign ${MARKS[sign] || ""}` }, sign),
    node("span", {}, text))));
}

function all() {
  head(); clocks(); layout(); timeline(); loss(); times(); machines(); lines();
  document.body.dataset.drawn = String(doc.step);
}

function page(step) {
  const at = doc.layouts.findIndex((one) => one.generation === shown);
  const next = (at < 0 ? doc.layouts.length - 1 : at) + step;
  shown = next >= doc.layouts.length - 1 ? null : doc.layouts[Math.max(0, next)].generation;
  layout();
}

function say(text) {
  $("lost").textContent = text;
  $("lost").hidden = !text;
}

const stream = new EventSource("stream");
stream.onmessage = (message) => {
  doc = JSON.parse(message.data);
  heardAt = performance.now();
  doc.wide = doc.layouts.some((one) => one.seats.some((seat) => seat[3] > 0));
  say("");
  all();
};
stream.addEventListener("end", () => {
  stream.close();
  if (doc) doc.moving = false;
  say("The run's process has ended; this is its last word. The report in its folder has the rest.");
});
stream.onerror = () => {
  if (stream.readyState !== EventSource.CLOSED || doc) {
    say("The run does not answer at present. What is shown is as of the last word.");
  }
};
$("earlier").addEventListener("click", () => page(-1));
$("later").addEventListener("click", () => page(1));
for (const input of document.querySelectorAll("input[name=colour]")) input.addEventListener("change", layout);
addEventListener("resize", () => doc && all());
setInterval(clocks, 1000);

"use strict";
/* The step page's timeline: what is looked at, tiles from the server, pointer and keys, the address of a view. */
import { drawMain, drawMap, firstAt, layout, palette, timeText } from "./timeline_draw.js";
import { Tiles } from "./timeline_tiles.js";
import { boxName, gapList, kernelPanel, node, rangePanel, say, swatch, tooltip } from "./timeline_panel.js";

const box = document.querySelector("[data-timeline]");
const part = (name) => box.querySelector(`[data-${name}]`);
const canvas = part("canvas");
const map = part("map");
const tip = part("tip");
const panel = part("panel");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let about = null;
let colours = null;
let rows = [];
let height = 0;
let width = 0;
let view = [0, 1]; // what is drawn
let aim = [0, 1]; // where the view is going
let drawn = false;
let held = new Set();
let last = 0;
let tiles = null;
const state = { colour: "class", only: null, selected: null, range: null, text: "", picking: false };
const search = { starts: [], rows: [], lengths: [], at: -1, total: 0 };
const details = new Map();

async function ask(path, values = {}) {
  const response = await fetch(`${box.dataset.timeline}${path}?${new URLSearchParams(values)}`, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

function settle() {
  if (box.dataset.state !== "failed") box.dataset.state = tiles.busy ? "loading" : "ready";
  redraw();
}

function fail() { box.dataset.state = "failed"; }

/* Colours */

const plain = (slot, shade = 0) => colours.style(slot, shade);
function styleOf(kind, code) {
  if (kind === "class") return plain(about.families.find(([key]) => key === about.classes[code][1])[2]);
  if (kind === "block") return plain(about.blocks[code][2], about.blocks[code][3]);
  if (kind === "place") return plain(about.places[code][3], about.places[code][4]);
  if (kind === "cause") return about.causes[code][1] ? plain(about.causes[code][1], 1) : { fill: colours.free, ink: colours.ink };
  return plain(1);
}
let styles = {};
function prepareStyles() {
  colours = palette();
  const table = (kind, values) => values.map((_value, code) => styleOf(kind, code));
  styles = { class: table("class", about.classes), block: table("block", about.blocks), layer: table("place", about.places),
    cause: table("cause", about.causes), step: { fill: colours["surface-3"], ink: colours.ink } };
}

function recolour() {
  prepareStyles();
  legend();
  listGaps();
  redraw();
}

function paint(row, boxes, at) {
  if (row.kind === "steps") return styles.step;
  if (row.kind === "free") return styles.cause[boxes.class_[at]];
  if (row.kind === "layers") return styles.layer[boxes.place[at]];
  if (row.kind === "blocks") return styles.block[boxes.block[at]];
  if (state.colour === "layer") return styles.layer[boxes.place[at]];
  return state.colour === "block" ? styles.block[boxes.block[at]] : styles.class[boxes.class_[at]];
}

const keyOf = (boxes, at) => ({ class: () => about.classes[boxes.class_[at]][1], block: () => about.blocks[boxes.block[at]][0], layer: () => String(about.places[boxes.place[at]][2] ?? "") })[state.colour]();
function chosen(row, boxes, at) {
  return row.kind === "steps" || row.kind === "free" || (row.kind !== "compute" && row.kind !== "communication" && state.colour !== (row.kind === "layers" ? "layer" : "block")) || keyOf(boxes, at) === state.only;
}

/* Drawing: once a frame, while something moves or has come. */

function redraw() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(frame);
}

function frame(now) {
  drawn = false;
  if (!about) return;
  const passed = Math.min(now - last, 50);
  last = now;
  move(passed);
  const close = still.matches ? 1 : 1 - 0.5 ** (passed / 28);
  const far = Math.abs(aim[0] - view[0]) + Math.abs(aim[1] - view[1]);
  const settled = far < (aim[1] - aim[0]) / 4000;
  view = settled ? [...aim] : [view[0] + (aim[0] - view[0]) * close, view[1] + (aim[1] - view[1]) * close];
  draw();
  if (!settled || held.size) redraw();
}

function draw() {
  const scale = width / (view[1] - view[0]);
  const scene = { view, scale, rows, colours, paint, zero: about.step[1], tiles: tiles.cover(view, width), labels: [], chosen: state.only === null ? null : chosen,
    label: (row, boxes, at, wide) => boxName(about, row, boxes, at, wide), range: state.range, matches: search, selected: selectedBox() };
  drawMain(canvas, scene, width, height);
  const main = rows.find((row) => row.kind === "compute") || rows[0];
  const overview = tiles.overview;
  drawMap(map, { colours, end: about.end, view, paint, steps: about.steps, main, overview: overview && main && overview.get(main.id) }, map.parentElement.clientWidth, 40);
}

function selectedBox() {
  const found = state.selected;
  const row = found && rows.find((lane) => lane.id === found.lane);
  return row ? { row, start: found.start, length: Number(found.columns.duration_ns) } : null;
}

/* The view */

function bounded(range) {
  const least = 200;
  const span = Math.min(Math.max(range[1] - range[0], least), about.end * 1.1 + least);
  const middle = Math.min(Math.max((range[0] + range[1]) / 2, 0), about.end);
  return [middle - span / 2, middle + span / 2];
}

function look(range, atOnce = false) {
  aim = bounded(range);
  if (atOnce) view = [...aim];
  tiles.want(aim, width);
  remember();
  redraw();
}

function zoom(by, at = 0.5, atOnce = false) {
  const middle = aim[0] + (aim[1] - aim[0]) * at;
  look([middle - (middle - aim[0]) * by, middle + (aim[1] - middle) * by], atOnce);
}

function pan(share, atOnce = false) {
  const by = (aim[1] - aim[0]) * share;
  look([aim[0] + by, aim[1] + by], atOnce);
}

const MOVES = { a: ["pan", -1], d: ["pan", 1], w: ["zoom", -1], s: ["zoom", 1], arrowleft: ["pan", -1], arrowright: ["pan", 1], "+": ["zoom", -1], "=": ["zoom", -1], "-": ["zoom", 1] };
function move(passed) {
  for (const key of held) {
    const [what, way] = MOVES[key];
    if (what === "pan") pan((way * passed) / 900);
    else zoom(Math.exp((way * passed) / 420), pointer.share ?? 0.5);
  }
}

/* The address holds the view; writing it again and again while moving would be refused by browsers. */
let noting = 0;
function remember() {
  clearTimeout(noting);
  noting = setTimeout(() => history.replaceState(history.state, "", address()), 250);
}

function address() {
  const values = new URLSearchParams();
  values.set("t", aim.map((time) => Math.round(time)).join("_"));
  if (state.colour !== "class") values.set("c", state.colour);
  if (state.only !== null) values.set("o", state.only);
  if (state.selected) values.set("k", state.selected.row);
  if (state.range) values.set("s", state.range.map((time) => Math.round(time)).join("_"));
  if (state.text) values.set("q", state.text);
  return `${location.pathname}${location.search}#${values}`;
}

const rangeOf = (text) => {
  const found = (text || "").split("_").map(Number);
  return found.length === 2 && found.every(Number.isFinite) && found[1] > found[0] ? found : null;
};

async function restore(hash = location.hash) {
  clearTimeout(noting);
  const values = new URLSearchParams(hash.slice(1));
  if (!["t", "c", "o", "k", "s", "q"].some((name) => values.has(name))) return false;
  const colour = values.get("c") || state.colour;
  setColour(["class", "layer", "block"].includes(colour) ? colour : "class", values.get("o"));
  const range = rangeOf(values.get("t"));
  if (range) look(range, !tiles.kept.size);
  state.range = rangeOf(values.get("s"));
  if (state.range) showRange();
  if (values.get("q")) { part("q").value = values.get("q"); find(values.get("q"), false); }
  if (/^\d+$/.test(values.get("k") || "")) await select({ row: values.get("k") }, !range);
  return Boolean(range) || values.has("k");
}

/* One kernel */

async function kernelOf(values) {
  const key = values.row === undefined ? null : Number(values.row);
  if (key !== null && details.has(key)) return details.get(key);
  const found = await ask("kernel/", values);
  if (details.size > 2000) details.clear();
  details.set(found.row, found);
  return found;
}

async function select(values, andLook = false) {
  let found = null;
  try { found = await kernelOf(values); } catch { return; }
  state.selected = found;
  const length = Number(found.columns.duration_ns);
  if (andLook && found.start !== null) look(around(found.start, length));
  else if (found.start !== null && (found.start + length < aim[0] || found.start > aim[1])) look([found.start - (aim[1] - aim[0]) / 2, found.start + (aim[1] - aim[0]) / 2]);
  showKernel();
  remember();
  redraw();
}

const around = (start, length) => [start - length * 4, start + length * 5];

function placeName({ part: kind, layer, pass }) {
  const block = about.blocks.find(([key]) => key === kind);
  const found = about.places.find((place) => kind === "layer" && place[2] === layer);
  if (!found) return block ? block[1] : "";
  const name = found[0].split(" · ")[0];
  return pass && about.passes[pass] ? `${name} · ${about.passes[pass]}` : name;
}

function show(title, children) {
  panel.replaceChildren(...children);
  panel.hidden = false;
  part("say").textContent = title;
  box.classList.add("with-panel");
}

function hide() {
  panel.hidden = true;
  box.classList.remove("with-panel");
  state.selected = null;
  state.range = null;
  remember();
  redraw();
  canvas.focus({ preventScroll: true });
}

function showKernel() {
  const found = state.selected;
  const acts = { close: hide, placeName, zoom: () => look(around(found.start, Number(found.columns.duration_ns))),
    before: () => select({ row: found.before }), after: () => select({ row: found.after }) };
  show(`${found.columns.type || ""} ${timeText(Number(found.columns.duration_ns), 4)}`, kernelPanel(about, found, about.step[1], acts));
}

/* A range */

async function showRange() {
  const range = state.range.map((time) => Math.round(time));
  let sums = null;
  try { sums = await ask("sums/", { begin: range[0], end: range[1] }); } catch { return; }
  if (!state.range) return;
  state.selected = null;
  const acts = { close: hide, placeName, zoom: () => look(range), goTo: (start, length) => look([start - length * 3, start + length * 4]) };
  const style = (kind, code) => styleOf(kind, code);
  show(`${about.words.range} ${timeText(range[1] - range[0], 4)}`, rangePanel(about, sums, range, about.step[1], style, acts));
  remember();
  redraw();
}

/* Search */

let asked = 0;
async function find(text, andGo = true) {
  const ticket = ++asked;
  state.text = text.trim();
  Object.assign(search, { starts: [], rows: [], lengths: [], at: -1, total: 0 });
  if (state.text) {
    box.dataset.search = "busy";
    try {
      const found = await ask("find/", { q: state.text, begin: about.step[1], end: about.step[2] });
      if (ticket !== asked) return;
      Object.assign(search, found);
    } catch { fail(); }
    box.dataset.search = "done";
  }
  sayFound();
  if (andGo && search.total) jump(1);
  remember();
  redraw();
}

function sayFound() {
  const at = search.at < 0 ? "–" : (search.at + 1).toLocaleString("en");
  part("found").textContent = !state.text ? "" : search.total ? say(about.words.found, { at, total: search.total.toLocaleString("en") }) : about.words.noneFound;
  for (const name of ["find-before", "find-after"]) part(name).disabled = !search.total;
}

function jump(by) {
  const size = search.starts.length;
  if (!size) return;
  if (search.at < 0) search.at = (firstAt({ start: search.starts }, aim[0]) - (by > 0 ? 1 : 0) + size) % size;
  search.at = (search.at + by + size) % size;
  sayFound();
  const [start, length] = [search.starts[search.at], search.lengths[search.at]];
  // Close enough to see the kernel, no closer than the view is.
  const span = Math.min(aim[1] - aim[0], Math.max(length * 30, 20_000));
  look([start + length / 2 - span / 2, start + length / 2 + span / 2]);
  select({ row: search.rows[search.at] });
}

/* Pointer */

const pointer = { down: null, share: null, moved: false, touches: new Map() };
const timeAt = (x) => view[0] + (x / width) * (view[1] - view[0]);
const place = (event) => {
  const edge = canvas.getBoundingClientRect();
  return { x: event.clientX - edge.left, y: event.clientY - edge.top };
};

/* The box under a point: of several on each other the shortest. */
function hit({ x, y }) {
  const row = rows.find((lane) => y >= lane.top && y < lane.top + lane.height + 2);
  if (!row) return null;
  const time = timeAt(x);
  const near = (1.5 * (view[1] - view[0])) / width;
  let best = null;
  for (const tile of tiles.cover(view, width)) {
    const boxes = tile.lanes.get(row.id);
    if (!boxes || time < tile.clip[0] - near || time > tile.clip[1] + near) continue;
    for (let at = firstAt(boxes, time - boxes.longest - near); at < boxes.start.length && boxes.start[at] <= time + near; at += 1) {
      if (boxes.start[at] + boxes.length[at] < time - near) continue;
      const off = Math.max(boxes.start[at] - time, time - boxes.start[at] - boxes.length[at], 0);
      if (!best || off < best.off || (off === best.off && boxes.length[at] < best.boxes.length[best.at])) best = { row, boxes, at, off };
    }
  }
  return best;
}

let hovering = 0;
function hover(point) {
  clearTimeout(hovering);
  const found = hit(point);
  tip.hidden = !found;
  canvas.style.cursor = state.picking ? "crosshair" : found ? "pointer" : "grab";
  if (!found) return;
  const write = (more) => {
    tip.replaceChildren(...tooltip(about, found.row, found.boxes, found.at, more, paint(found.row, found.boxes, found.at)));
    const edge = canvas.getBoundingClientRect();
    const [x, y] = [edge.left + point.x, edge.top + point.y];
    const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
    const above = y + 20 + tip.offsetHeight > innerHeight - 8;
    tip.style.transform = `translate(${Math.round(Math.max(left, 8))}px, ${Math.round(above ? y - tip.offsetHeight - 12 : y + 20)}px)`;
  };
  const row = found.boxes.row[found.at];
  const one = found.boxes.count[found.at] === 1 && (found.row.kind === "compute" || found.row.kind === "communication");
  write(one ? details.get(row) : null);
  if (one && !details.has(row)) hovering = setTimeout(() => kernelOf({ row }).then((more) => { if (!tip.hidden) write(more); }, () => {}), 90);
}

function listenPointer() {
  canvas.addEventListener("pointerdown", (event) => {
    const point = place(event);
    canvas.setPointerCapture(event.pointerId);
    pointer.touches.set(event.pointerId, point);
    pointer.moved = false;
    pointer.down = { ...point, aim: [...aim], picking: event.shiftKey || state.picking, touches: [...pointer.touches.values()].map((touch) => ({ ...touch })) };
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const point = place(event);
    pointer.share = point.x / width;
    if (!pointer.down) { hover(point); return; }
    pointer.touches.set(event.pointerId, point);
    drag(point);
  });
  const release = (event) => {
    const down = pointer.down;
    pointer.touches.delete(event.pointerId);
    if (pointer.touches.size) { pointer.down = { ...[...pointer.touches.values()][0], aim: [...aim], picking: false, touches: [] }; return; }
    pointer.down = null;
    if (!down || event.type === "pointercancel") return;
    if (down.picking && pointer.moved) showRange();
    else if (!pointer.moved) click(hit(place(event)));
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { clearTimeout(hovering); tip.hidden = true; pointer.share = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.3, place(event).x / width));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const by = event.deltaMode === 1 ? 18 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) * by) / width);
    else zoom(Math.exp(event.deltaY * by * 0.0022), place(event).x / width);
  }, { passive: false });
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); centre(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) centre(event); });
}

function drag(point) {
  const { down } = pointer;
  if (Math.abs(point.x - down.x) > 3) pointer.moved = true;
  if (!pointer.moved) return;
  const span = down.aim[1] - down.aim[0];
  if (pointer.touches.size === 2 && down.touches.length === 2) {
    const [a, b] = [...pointer.touches.values()].map((touch) => touch.x).sort((one, other) => one - other);
    const [c, d] = down.touches.map((touch) => touch.x).sort((one, other) => one - other);
    const per = span / width / Math.max((b - a) / Math.max(d - c, 1), 0.01);
    const fixed = down.aim[0] + ((c + d) / 2) * (span / width);
    look([fixed - ((a + b) / 2) * per, fixed + (width - (a + b) / 2) * per], true);
  } else if (down.picking) {
    const ends = [down.x, point.x].map((x) => Math.min(Math.max(timeAt(x), 0), about.end)).sort((one, other) => one - other);
    state.range = ends[1] > ends[0] ? ends : null;
    redraw();
  } else {
    const by = ((point.x - down.x) / width) * span;
    look([down.aim[0] - by, down.aim[1] - by], true);
  }
}

function click(found) {
  if (!found) return;
  const { row, boxes, at } = found;
  const [start, length] = [boxes.start[at], boxes.length[at]];
  if (row.kind === "compute" || row.kind === "communication") {
    if (boxes.count[at] > 1) look([start - length * 2, start + length * 3]);
    else select({ row: boxes.row[at] });
  } else {
    state.range = [start, start + length];
    showRange();
    if (row.kind === "free" || boxes.count[at] > 1) look([start - length * 3, start + length * 4]);
  }
}

function centre(event) {
  const edge = map.getBoundingClientRect();
  const middle = ((event.clientX - edge.left) / edge.width) * about.end;
  const half = (aim[1] - aim[0]) / 2;
  look([middle - half, middle + half], true);
}

/* Keys: on the canvas alone, so that the page keeps its own. */

function listenKeys() {
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const acts = { f: fit, "0": fit, n: () => jump(1), p: () => jump(-1), ".": () => along("after"), ",": () => along("before"), escape: () => { if (!panel.hidden) hide(); },
      enter: () => { if (!panel.hidden) panel.querySelector("button").focus(); }, r: () => { state.range = [...aim]; showRange(); }, arrowup: () => across(-1), arrowdown: () => across(1) };
    if (MOVES[key]) {
      if (!held.has(key)) { held.add(key); last = performance.now(); move(130); redraw(); }
    } else if (acts[key]) acts[key]();
    else if (key !== "/") return;
    event.stopPropagation();
    event.preventDefault();
    if (key === "/") part("q").focus();
  });
  canvas.addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
  for (const name of ["blur", "visibilitychange"]) addEventListener(name, () => held.clear());
  canvas.addEventListener("blur", () => held.clear());
}

function along(way) {
  if (state.selected && state.selected[way] !== null) select({ row: state.selected[way] });
  else if (!state.selected) across(0);
}

/* The kernel at the same time one lane up or down; the first time, the one in the middle of the view. */
function across(by) {
  const lanes = rows.filter((row) => row.kind === "compute" || row.kind === "communication");
  const now = lanes.findIndex((row) => state.selected && row.id === state.selected.lane);
  const lane = lanes[Math.min(Math.max(now < 0 ? 0 : now + by, 0), lanes.length - 1)];
  const time = state.selected && state.selected.start !== null ? state.selected.start : (aim[0] + aim[1]) / 2;
  if (lane) select({ lane: lane.id, at: Math.round(time) });
}

function goToStep(label) {
  about.step = about.steps.find(([name]) => String(name) === label) || ["", 0, about.end];
  fit();
  if (state.text) find(state.text, false);
}

function fit() { look(padded(about.step)); }
const padded = ([, begin, end]) => [begin - (end - begin) * 0.01, end + (end - begin) * 0.01];

/* Around the canvas */

function legend() {
  const present = { class: about.families.filter(([key]) => about.classes.some((name) => name[1] === key)).map(([key, name, slot]) => [key, name, plain(slot)]),
    block: about.blocks.map(([key, name, slot, shade]) => [key, name, plain(slot, shade)]).filter(([key]) => key),
    layer: [...new Map(about.places.filter((place) => place[2] !== null).map((place) => [place[2], place])).entries()].sort((a, b) => a[0] - b[0]).map(([layer, place]) => [String(layer), place[1], plain(place[3])]) }[state.colour];
  part("legend").replaceChildren(...present.map(([key, name, style]) => {
    const chip = node("i", { class: "tl-swatch" });
    chip.style.background = style.fill;
    return node("button", { type: "button", class: "tl-key", "aria-pressed": String(state.only === key), onclick: () => { state.only = state.only === key ? null : key; legend(); remember(); redraw(); } }, chip, name);
  }));
}

function setColour(colour, only = null) {
  state.colour = colour;
  state.only = only;
  for (const button of box.querySelectorAll("[data-colour]")) button.setAttribute("aria-pressed", String(button.dataset.colour === colour));
  legend();
}

/* Lanes from top to bottom; on a phone their names stand above them. */
function placeLanes() {
  width = canvas.parentElement.clientWidth;
  const narrow = width < 640 && matchMedia("(max-width: 780px)").matches;
  ({ rows, height } = layout(about.lanes, narrow));
  part("lanes").replaceChildren(...rows.map((row) => {
    const label = node("li", { title: row.key ? `${row.name} (${row.key})` : row.name }, row.name);
    label.style.top = `${narrow ? row.top - 14 : row.top}px`;
    label.style.height = `${narrow ? 14 : row.height}px`;
    return label;
  }));
}

function listenTools() {
  const on = (name, act) => part(name).addEventListener("click", act);
  on("in", () => zoom(0.5));
  on("out", () => zoom(2));
  on("fit", fit);
  on("sum", () => { state.range = [Math.max(0, aim[0]), Math.min(about.end, aim[1])]; showRange(); });
  on("pick", () => { state.picking = !state.picking; part("pick").setAttribute("aria-pressed", String(state.picking)); });
  on("link", copyLink);
  const steps = box.querySelector("[data-step]");
  if (steps) steps.addEventListener("change", () => goToStep(steps.value));
  on("find-before", () => jump(-1));
  on("find-after", () => jump(1));
  for (const button of box.querySelectorAll("[data-colour]")) button.addEventListener("click", () => { setColour(button.dataset.colour); remember(); redraw(); });
  part("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = part("q").value.trim();
    if (text === state.text && search.total) jump(1);
    else find(text);
  });
  part("q").addEventListener("search", () => { if (!part("q").value) find(""); });
  document.addEventListener("themechange", recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("hashchange", goToAddress);
  new ResizeObserver(() => { placeLanes(); tiles.want(aim, width); redraw(); }).observe(canvas.parentElement);
}

/* A link to a kernel or a view was followed; by now remember() may have written over location.hash. */
function goToAddress(event) {
  const { hash } = new URL(event.newURL);
  if (hash.includes("=")) restore(hash).then(() => box.scrollIntoView({ block: "nearest" }));
}

async function copyLink() {
  history.replaceState(history.state, "", address());
  const button = part("link");
  try { await navigator.clipboard.writeText(location.href); } catch { prompt("", location.href); return; }
  const label = button.querySelector("span");
  const before = label.textContent;
  label.textContent = about.words.copied;
  setTimeout(() => { label.textContent = before; }, 1500);
}

function listGaps() {
  const acts = { goTo: (start, length) => look([start - length * 3, start + length * 4]) };
  const causes = about.causes.map(([name, , ns], code) => [name, ns, code]).filter(([, ns]) => ns).sort((one, other) => other[1] - one[1])
    .map(([name, ns, code]) => node("span", { class: "chip" }, swatch(styles.cause[code]), `${name} ${say(about.words.perStep, { time: timeText(ns) })}`));
  const byCause = causes.length ? node("div", { class: "tl-gaps" }, node("h4", {}, about.words.byCause), node("div", { class: "chips" }, ...causes)) : null;
  part("gaps").replaceChildren(...[byCause, gapList(about, about.gaps, acts)].filter(Boolean));
}

async function start() {
  try {
    const params = new URLSearchParams(location.search);
    about = await ask("", Object.fromEntries(["step", "layer", "block"].filter((name) => params.get(name)).map((name) => [name, params.get(name)])));
  } catch {
    fail();
    return;
  }
  tiles = new Tiles(box.dataset.timeline, about.version, about.end, settle, fail);
  prepareStyles();
  setColour("class");
  placeLanes();
  listGaps();
  const steps = box.querySelector("[data-step]");
  if (steps) steps.value = about.step[0] ?? "";
  listenPointer();
  listenKeys();
  listenTools();
  tiles.fetch(tiles.top, 0);
  if (!(await restore())) lookFirst();
  sayFound();
}

/* The layer that the address asks for, else the step. */
function lookFirst() {
  if (!about.focus) { look(padded(about.step), true); return; }
  setColour("layer", new URLSearchParams(location.search).get("layer"));
  const more = (about.focus[1] - about.focus[0]) * 0.3;
  look([about.focus[0] - more, about.focus[1] + more], true);
}

if (box) start();

"use strict";
/* What is looked at: the view moves towards its aim and is drawn once a frame, while something moves or has come. */
import { remember } from "./timeline_address.js";
import { chosen, colours, paint } from "./timeline_colours.js";
import { drawMain, drawMap, layout } from "./timeline_draw.js";
import { boxName, node } from "./timeline_panel.js";
import { app, canvas, map, part, search } from "./timeline_state.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const LEAST_NS = 200;
let waiting = false;
let last = 0;

export function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(frame);
}

function frame(now) {
  waiting = false;
  if (!app.about) return;
  const passed = Math.min(now - last, 50);
  last = now;
  move(passed);
  const { aim, view } = app;
  const close = still.matches ? 1 : 1 - 0.5 ** (passed / 28);
  const far = Math.abs(aim[0] - view[0]) + Math.abs(aim[1] - view[1]);
  const settled = far < (aim[1] - aim[0]) / 4000;
  app.view = settled ? [...aim] : [view[0] + (aim[0] - view[0]) * close, view[1] + (aim[1] - view[1]) * close];
  draw();
  if (!settled || app.held.size) redraw();
}

function draw() {
  const { about, rows, tiles, view, width } = app;
  const label = (row, boxes, at, wide) => boxName(about, row, boxes, at, wide);
  const scene = { view, scale: width / (view[1] - view[0]), rows, colours, paint, zero: about.step[1], tiles: tiles.cover(view, width), labels: [],
    chosen: app.only === null ? null : chosen, label, range: app.range, matches: search, selected: selectedBox() };
  drawMain(canvas, scene, width, app.height);
  const main = rows.find((row) => row.kind === "compute") || rows[0];
  const overview = tiles.overview && main && tiles.overview.get(main.id);
  drawMap(map, { colours, end: about.end, view, paint, steps: about.steps, main, overview }, map.parentElement.clientWidth, 40);
}

function selectedBox() {
  const found = app.selected;
  const row = found && app.rows.find((lane) => lane.id === found.lane);
  return row ? { row, start: found.start, length: Number(found.columns.duration_ns) } : null;
}

function bounded(range) {
  const { end } = app.about;
  const span = Math.min(Math.max(range[1] - range[0], LEAST_NS), end * 1.1 + LEAST_NS);
  const middle = Math.min(Math.max((range[0] + range[1]) / 2, 0), end);
  return [middle - span / 2, middle + span / 2];
}

export function look(range, atOnce = false) {
  app.aim = bounded(range);
  if (atOnce) app.view = [...app.aim];
  app.tiles.want(app.aim, app.width);
  remember();
  redraw();
}

/* So that a box of `before` + 1 + `after` lengths is seen around [start, start + length]. */
export function lookAround(start, length, before = 3, after = before + 1) {
  look([start - length * before, start + length * after]);
}

export function zoom(by, at = 0.5) {
  const { aim } = app;
  const middle = aim[0] + (aim[1] - aim[0]) * at;
  look([middle - (middle - aim[0]) * by, middle + (aim[1] - middle) * by]);
}

export function pan(share) {
  const { aim } = app;
  const by = (aim[1] - aim[0]) * share;
  look([aim[0] + by, aim[1] + by]);
}

export const padded = ([, begin, end]) => [begin - (end - begin) * 0.01, end + (end - begin) * 0.01];
export function fit() { look(padded(app.about.step)); }

export const MOVES = { a: ["pan", -1], d: ["pan", 1], w: ["zoom", -1], s: ["zoom", 1], arrowleft: ["pan", -1], arrowright: ["pan", 1], "+": ["zoom", -1], "=": ["zoom", -1], "-": ["zoom", 1] };

/* As far as the keys that are down move the view in `passed` ms. */
function move(passed) {
  for (const key of app.held) {
    const [what, way] = MOVES[key];
    if (what === "pan") pan((way * passed) / 900);
    else zoom(Math.exp((way * passed) / 420), app.pointerShare ?? 0.5);
  }
}

export function startMove(key) {
  app.held.add(key);
  last = performance.now();
  move(130);
  redraw();
}

/* Lanes from top to bottom; on a phone their names stand above them. */
export function placeLanes() {
  app.width = canvas.parentElement.clientWidth;
  const narrow = app.width < 640 && matchMedia("(max-width: 780px)").matches;
  Object.assign(app, layout(app.about.lanes, narrow));
  part("lanes").replaceChildren(...app.rows.map((row) => {
    const label = node("li", { title: row.key ? `${row.name} (${row.key})` : row.name }, row.name);
    label.style.top = `${narrow ? row.top - 14 : row.top}px`;
    label.style.height = `${narrow ? 14 : row.height}px`;
    return label;
  }));
}

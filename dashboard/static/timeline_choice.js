"use strict";
/* What is chosen: one kernel or a range, and the panel that tells of it. */
import { remember } from "./timeline_address.js";
import { styleOf, styles } from "./timeline_colours.js";
import { timeText } from "./timeline_draw.js";
import { gapList, kernelPanel, node, rangePanel, say, swatch } from "./timeline_panel.js";
import { app, ask, box, canvas, isKernels, panel, part } from "./timeline_state.js";
import { look, lookAround, redraw } from "./timeline_view.js";

const KEPT = 2000;
const details = new Map();

export const knownKernel = (row) => details.get(row);

/* The details of a kernel named by its row, or by lane and time. */
export async function kernelOf(values) {
  const key = values.row === undefined ? null : Number(values.row);
  if (key !== null && details.has(key)) return details.get(key);
  const found = await ask("kernel/", values);
  if (details.size > KEPT) details.clear();
  details.set(found.row, found);
  return found;
}

export async function select(values, andLook = false) {
  let found = null;
  try { found = await kernelOf(values); } catch { return; }
  app.selected = found;
  bringIntoView(found, andLook);
  showKernel(found);
  remember();
  redraw();
}

function bringIntoView({ start, columns }, closely) {
  if (start === null) return;
  const { aim } = app;
  const length = Number(columns.duration_ns);
  if (closely) lookAround(start, length, 4);
  else if (start + length < aim[0] || start > aim[1]) look([start - (aim[1] - aim[0]) / 2, start + (aim[1] - aim[0]) / 2]);
}

function placeName({ part: kind, layer, pass }) {
  const { about } = app;
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

export function hide() {
  panel.hidden = true;
  box.classList.remove("with-panel");
  Object.assign(app, { selected: null, range: null });
  remember();
  redraw();
  canvas.focus({ preventScroll: true });
}

function showKernel(found) {
  const length = Number(found.columns.duration_ns);
  const acts = { close: hide, placeName, zoom: () => lookAround(found.start, length, 4),
    before: () => select({ row: found.before }), after: () => select({ row: found.after }) };
  show(`${found.columns.type || ""} ${timeText(length, 4)}`, kernelPanel(app.about, found, app.about.step[1], acts));
}

export async function showRange(chosen = app.range) {
  app.range = chosen;
  const range = chosen.map((time) => Math.round(time));
  let sums = null;
  try { sums = await ask("sums/", { begin: range[0], end: range[1] }); } catch { return; }
  if (!app.range) return;
  app.selected = null;
  const { about } = app;
  const acts = { close: hide, placeName, zoom: () => look(range), goTo: lookAround };
  show(`${about.words.range} ${timeText(range[1] - range[0], 4)}`, rangePanel(about, sums, range, about.step[1], styleOf, acts));
  remember();
  redraw();
}

export function showView() {
  showRange([Math.max(0, app.aim[0]), Math.min(app.about.end, app.aim[1])]);
}

/* The kernel before or after the selected one. */
export function along(way) {
  if (app.selected && app.selected[way] !== null) select({ row: app.selected[way] });
  else if (!app.selected) across(0);
}

/* The kernel at the same time one lane up or down; the first time, the one in the middle of the view. */
export function across(by) {
  const { aim, selected } = app;
  const lanes = app.rows.filter(isKernels);
  const now = lanes.findIndex((row) => selected && row.id === selected.lane);
  const lane = lanes[Math.min(Math.max(now < 0 ? 0 : now + by, 0), lanes.length - 1)];
  const time = selected && selected.start !== null ? selected.start : (aim[0] + aim[1]) / 2;
  if (lane) select({ lane: lane.id, at: Math.round(time) });
}

/* Below the canvas: free time by cause, and the longest gaps of the step. */
export function listGaps() {
  const { about } = app;
  const causes = about.causes.map(([name, , ns], code) => [name, ns, code]).filter(([, ns]) => ns).sort((one, other) => other[1] - one[1])
    .map(([name, ns, code]) => node("span", { class: "chip" }, swatch(styles.cause[code]), `${name} ${say(about.words.perStep, { time: timeText(ns) })}`));
  const byCause = causes.length ? node("div", { class: "tl-gaps" }, node("h4", {}, about.words.byCause), node("div", { class: "chips" }, ...causes)) : null;
  part("gaps").replaceChildren(...[byCause, gapList(about, about.gaps, { goTo: lookAround })].filter(Boolean));
}

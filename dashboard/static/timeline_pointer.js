"use strict";
/* The pointer over the timeline: what it points at, dragging, pinching, the wheel, the small map above. */
import { kernelOf, knownKernel, select, showRange } from "./timeline_choice.js";
import { paint } from "./timeline_colours.js";
import { firstAt } from "./timeline_draw.js";
import { tooltip } from "./timeline_panel.js";
import { app, canvas, isKernels, map, tip } from "./timeline_state.js";
import { look, lookAround, pan, redraw, zoom } from "./timeline_view.js";

const touches = new Map();
let down = null;
let moved = false;
let hovering = 0;

const timeAt = (x) => app.view[0] + (x / app.width) * (app.view[1] - app.view[0]);
const place = (event) => {
  const edge = canvas.getBoundingClientRect();
  return { x: event.clientX - edge.left, y: event.clientY - edge.top };
};

/* The box under a point: of several on each other the shortest. */
function hit({ x, y }) {
  const row = app.rows.find((lane) => y >= lane.top && y < lane.top + lane.height + 2);
  if (!row) return null;
  const time = timeAt(x);
  const near = (1.5 * (app.view[1] - app.view[0])) / app.width;
  let best = null;
  for (const tile of app.tiles.cover(app.view, app.width)) {
    const boxes = tile.lanes.get(row.id);
    if (boxes && time >= tile.clip[0] - near && time <= tile.clip[1] + near) best = nearest(boxes, row, time, near, best);
  }
  return best;
}

function nearest(boxes, row, time, near, so) {
  let best = so;
  for (let at = firstAt(boxes, time - boxes.longest - near); at < boxes.start.length && boxes.start[at] <= time + near; at += 1) {
    if (boxes.start[at] + boxes.length[at] < time - near) continue;
    const off = Math.max(boxes.start[at] - time, time - boxes.start[at] - boxes.length[at], 0);
    if (!best || off < best.off || (off === best.off && boxes.length[at] < best.boxes.length[best.at])) best = { row, boxes, at, off };
  }
  return best;
}

function hover(point) {
  clearTimeout(hovering);
  const found = hit(point);
  tip.hidden = !found;
  canvas.style.cursor = app.picking ? "crosshair" : found ? "pointer" : "grab";
  if (!found) return;
  const { row, boxes, at } = found;
  const kernel = boxes.row[at];
  const one = boxes.count[at] === 1 && isKernels(row);
  writeTip(found, point, one ? knownKernel(kernel) : null);
  if (!one || knownKernel(kernel)) return;
  const write = (more) => { if (!tip.hidden) writeTip(found, point, more); };
  hovering = setTimeout(() => kernelOf({ row: kernel }).then(write, () => {}), 90);
}

function writeTip({ row, boxes, at }, point, more) {
  tip.replaceChildren(...tooltip(app.about, row, boxes, at, more, paint(row, boxes, at)));
  const edge = canvas.getBoundingClientRect();
  const [x, y] = [edge.left + point.x, edge.top + point.y];
  const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
  const above = y + 20 + tip.offsetHeight > innerHeight - 8;
  tip.style.transform = `translate(${Math.round(Math.max(left, 8))}px, ${Math.round(above ? y - tip.offsetHeight - 12 : y + 20)}px)`;
}

export function listenPointer() {
  canvas.addEventListener("pointerdown", press);
  canvas.addEventListener("pointermove", (event) => {
    const point = place(event);
    app.pointerShare = point.x / app.width;
    if (!down) { hover(point); return; }
    touches.set(event.pointerId, point);
    drag(point);
  });
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { clearTimeout(hovering); tip.hidden = true; app.pointerShare = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.3, place(event).x / app.width));
  canvas.addEventListener("wheel", turn, { passive: false });
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); centre(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) centre(event); });
}

function press(event) {
  const point = place(event);
  canvas.setPointerCapture(event.pointerId);
  touches.set(event.pointerId, point);
  moved = false;
  down = { ...point, aim: [...app.aim], picking: event.shiftKey || app.picking, touches: [...touches.values()].map((touch) => ({ ...touch })) };
  tip.hidden = true;
}

function release(event) {
  const pressed = down;
  touches.delete(event.pointerId);
  if (touches.size) { down = { ...[...touches.values()][0], aim: [...app.aim], picking: false, touches: [] }; return; }
  down = null;
  if (!pressed || event.type === "pointercancel") return;
  if (pressed.picking && moved) { if (app.range) showRange(); } else if (!moved) click(hit(place(event)));
}

function turn(event) {
  event.preventDefault();
  const by = event.deltaMode === 1 ? 18 : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) * by) / app.width);
  else zoom(Math.exp(event.deltaY * by * 0.0022), place(event).x / app.width);
}

function drag(point) {
  if (Math.abs(point.x - down.x) > 3) moved = true;
  if (!moved) return;
  const perPixel = (down.aim[1] - down.aim[0]) / app.width;
  if (touches.size === 2 && down.touches.length === 2) pinch(perPixel);
  else if (down.picking) {
    const ends = [down.x, point.x].map((x) => Math.min(Math.max(timeAt(x), 0), app.about.end)).sort((one, other) => one - other);
    app.range = ends[1] > ends[0] ? ends : null;
    redraw();
  } else {
    const by = (point.x - down.x) * perPixel;
    look([down.aim[0] - by, down.aim[1] - by], true);
  }
}

function pinch(perPixel) {
  const ends = (list) => list.map((touch) => touch.x).sort((one, other) => one - other);
  const [a, b] = ends([...touches.values()]);
  const [c, d] = ends(down.touches);
  const per = perPixel / Math.max((b - a) / Math.max(d - c, 1), 0.01);
  const fixed = down.aim[0] + ((c + d) / 2) * perPixel;
  look([fixed - ((a + b) / 2) * per, fixed + (app.width - (a + b) / 2) * per], true);
}

function click(found) {
  if (!found) return;
  const { row, boxes, at } = found;
  const [start, length] = [boxes.start[at], boxes.length[at]];
  if (isKernels(row)) {
    if (boxes.count[at] > 1) lookAround(start, length, 2);
    else select({ row: boxes.row[at] });
    return;
  }
  showRange([start, start + length]);
  if (row.kind === "free" || boxes.count[at] > 1) lookAround(start, length);
}

function centre(event) {
  const edge = map.getBoundingClientRect();
  const middle = ((event.clientX - edge.left) / edge.width) * app.about.end;
  const half = (app.aim[1] - app.aim[0]) / 2;
  look([middle - half, middle + half], true);
}

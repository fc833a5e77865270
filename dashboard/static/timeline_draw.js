"use strict";
/* Draws the timeline's canvases from tiles of boxes. Knows nothing of requests, panels or the address. */

export const RULER = 26;
const HEIGHTS = { steps: 18, layers: 22, blocks: 20, compute: 40, communication: 28, free: 16 };
const GAP = 4;
const SLOTS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
const SHADES = [0, 0.38, 0.64];

export function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function channels(colour) {
  const hex = colour.replace("#", "");
  const wide = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((at) => parseInt(wide.slice(at, at + 2), 16));
}

function mixed(colour, other, share) {
  const a = channels(colour);
  const b = channels(other);
  return `rgb(${a.map((value, at) => Math.round(value * (1 - share) + b[at] * share)).join(" ")})`;
}

/* Colours of this theme: a slot and a shade to a fill, and the ink that can be read on it. */
export function palette() {
  const named = Object.fromEntries(
    ["surface", "surface-2", "surface-3", "line", "line-strong", "ink", "ink-2", "ink-3", "accent", "free", "warn"].map((name) => [name, token(name)]),
  );
  const fills = SLOTS.map((slot) => SHADES.map((share) => mixed(token(slot), named.surface, share)));
  const ink = (fill) => {
    const [r, g, b] = fill.match(/\d+/g).map(Number).map((value) => (value / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.24 ? "#0b1220" : "#ffffff";
  };
  const styles = fills.map((row) => row.map((fill) => ({ fill, ink: ink(fill) })));
  return { ...named, style: (slot, shade) => styles[(slot || 8) - 1][shade || 0], font: getComputedStyle(document.body).fontFamily };
}

/* Where each lane is drawn. */
export function layout(lanes, narrow) {
  const gap = narrow ? 17 : GAP;
  let top = RULER + gap;
  const rows = lanes.map((lane) => {
    const height = HEIGHTS[lane.kind];
    const row = { ...lane, top, height };
    top += height + gap;
    return row;
  });
  return { rows, height: top + 2 };
}

export function timeText(ns, digits = 3) {
  const size = Math.abs(ns);
  const [unit, by] = size >= 1e10 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const value = ns / by;
  const whole = Math.max(1, Math.floor(Math.log10(Math.max(Math.abs(value), 1))) + 1);
  return `${value.toLocaleString("en", { maximumFractionDigits: by === 1 ? 0 : Math.max(0, digits - whole) })}\u202f${unit}`;
}

function tickStep(span, width) {
  const rough = (span / Math.max(width, 1)) * 110;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => step >= rough) || 10 * power;
}

export function sized(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  return draw;
}

/* First box that can reach `time`, by starts; boxes before it may only be long ones, which `longest` allows for. */
export function firstAt(boxes, time) {
  let low = 0;
  let high = boxes.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (boxes.start[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* One lane of one tile, from `clip[0]` to `clip[1]`. */
function drawLane(draw, scene, row, boxes, clip) {
  const { view, scale, paint, chosen } = scene;
  const low = Math.max(clip[0], view[0]);
  const high = Math.min(clip[1], view[1]);
  const isBand = row.kind === "steps" || row.kind === "layers" || row.kind === "blocks";
  let filled = null;
  for (let at = firstAt(boxes, low - boxes.longest); at < boxes.start.length && boxes.start[at] < high; at += 1) {
    const begin = Math.max(boxes.start[at], low);
    const ends = boxes.start[at] + boxes.length[at];
    const end = Math.min(ends, high);
    if (end <= begin && boxes.length[at] > 0) continue;
    const left = (begin - view[0]) * scale;
    const wide = (end - begin) * scale;
    const style = paint(row, boxes, at);
    if (filled !== style.fill) { filled = style.fill; draw.fillStyle = filled; }
    // Merged boxes are as high as they are busy.
    const busy = boxes.count[at] > 1 && !isBand ? Math.min(1, boxes.busy[at] / Math.max(boxes.length[at], 1)) : 1;
    const high_ = busy === 1 ? row.height : Math.max(3, row.height * (0.25 + 0.75 * busy));
    const faint = chosen && !chosen(row, boxes, at);
    if (faint) draw.globalAlpha = 0.14;
    // A hairline parts neighbours, but not the two halves of a box that a tile's edge cuts.
    draw.fillRect(left, row.top + row.height - high_, wide > 3 && end === ends ? wide - 0.8 : Math.max(wide + (end < ends ? 0.7 : 0), 0.9), high_);
    if (faint) draw.globalAlpha = 1;
    else if (boxes.count[at] === 1 && begin === Math.max(boxes.start[at], view[0])) {
      const shown = (Math.min(ends, view[1]) - begin) * scale;
      if (shown > 30) scene.labels.push([row, boxes, at, left, shown, style.ink]);
    }
  }
}

function drawLabels(draw, scene) {
  for (const [row, boxes, at, left, wide, ink] of scene.labels) {
    const text = fitted(draw, scene.label(row, boxes, at, wide), wide - 8);
    if (!text) continue;
    draw.fillStyle = ink;
    draw.fillText(text, left + 4, row.top + row.height / 2 + 0.5);
  }
}

const widths = new Map();
function fitted(draw, text, room) {
  if (!text) return "";
  if (!widths.has(text)) {
    if (widths.size > 4000) widths.clear();
    widths.set(text, draw.measureText(text).width);
  }
  const wide = widths.get(text);
  if (wide <= room) return text;
  let kept = Math.floor((text.length * room) / wide);
  while (kept >= 2 && draw.measureText(`${text.slice(0, kept)}…`).width > room) kept -= 1;
  return kept >= 2 ? `${text.slice(0, kept)}…` : "";
}

function drawRuler(draw, scene, width, height) {
  const { view, scale, colours, zero } = scene;
  const step = tickStep(view[1] - view[0], width);
  draw.font = `11px ${colours.font}`;
  draw.textBaseline = "middle";
  const first = Math.ceil((view[0] - zero) / step) * step;
  for (let at = first / step; at * step + zero <= view[1]; at += 1) {
    const time = Math.round(at) * step || 0; // no -0
    const x = Math.round((time + zero - view[0]) * scale) + 0.5;
    draw.fillStyle = colours.line;
    draw.fillRect(x, RULER - 6, 1, height);
    draw.fillStyle = colours["ink-3"];
    const text = time ? timeText(time, 6) : `0\u202f${timeText(step).split("\u202f")[1]}`;
    // A label that the right edge would cut stands before its tick.
    const room = width - x - 4;
    const wide = draw.measureText(text).width;
    draw.fillText(text, room >= wide ? x + 4 : x - wide - 4, 10);
  }
}

/* scene: view, scale, zero, rows, tiles [{lanes, clip}], paint, label, chosen, selected, range, matches, colours. */
export function drawMain(canvas, scene, width, height) {
  const draw = sized(canvas, width, height);
  const { rows, colours, view, scale } = scene;
  drawRuler(draw, scene, width, height);
  draw.font = `11.5px ${colours.font}`;
  for (const row of rows) {
    draw.fillStyle = colours["surface-2"];
    draw.fillRect(0, row.top, width, row.height);
  }
  for (const tile of scene.tiles) {
    for (const row of rows) {
      const boxes = tile.lanes.get(row.id);
      if (boxes) drawLane(draw, scene, row, boxes, tile.clip);
    }
  }
  drawLabels(draw, scene);
  drawMatches(draw, scene, width);
  if (scene.range) drawRange(draw, scene, width, height);
  if (scene.selected) {
    const { row, start, length } = scene.selected;
    const left = (start - view[0]) * scale;
    draw.strokeStyle = colours.ink;
    draw.lineWidth = 2;
    draw.strokeRect(left, row.top - 1, Math.max(length * scale, 2), row.height + 2);
  }
}

function drawMatches(draw, scene, width) {
  const { matches, view, scale, colours } = scene;
  if (!matches || !matches.starts.length) return;
  let drawn = -9;
  draw.fillStyle = colours.accent;
  for (let at = firstAt({ start: matches.starts }, view[0]); at < matches.starts.length && matches.starts[at] <= view[1]; at += 1) {
    const x = (matches.starts[at] - view[0]) * scale;
    if (x - drawn < 2) continue;
    drawn = x;
    draw.fillRect(Math.min(x, width - 1.5), RULER - 8, 1.5, 8);
  }
}

function drawRange(draw, scene, width, height) {
  const [left, right] = scene.range.map((time) => (time - scene.view[0]) * scene.scale);
  draw.globalAlpha = 0.13;
  draw.fillStyle = scene.colours.accent;
  draw.fillRect(left, 0, right - left, height);
  draw.globalAlpha = 1;
  for (const x of [left, right]) draw.fillRect(x - 0.75, 0, 1.5, height);
  if (right < 0 || left > width) return;
  const text = timeText(scene.range[1] - scene.range[0], 4);
  const wide = draw.measureText(text).width + 12;
  const x = Math.min(Math.max((left + right - wide) / 2, 2), width - wide - 2);
  draw.beginPath();
  draw.roundRect(x, 2, wide, 17, 5);
  draw.fill();
  draw.fillStyle = scene.colours.surface;
  draw.fillText(text, x + 6, 11);
}

/* The whole capture in one line: steps, how busy its main lane is, and where the view is. */
export function drawMap(canvas, scene, width, height) {
  const draw = sized(canvas, width, height);
  const { colours, end, view } = scene;
  const scale = width / Math.max(end, 1);
  draw.fillStyle = colours["surface-2"];
  draw.fillRect(0, 0, width, height);
  const boxes = scene.overview;
  if (boxes) {
    for (let at = 0; at < boxes.start.length; at += 1) {
      draw.fillStyle = scene.paint(scene.main, boxes, at).fill;
      const busy = Math.min(1, boxes.busy[at] / Math.max(boxes.length[at], 1));
      const tall = Math.max(2, (height - 8) * busy);
      draw.fillRect(boxes.start[at] * scale, height - 2 - tall, Math.max(boxes.length[at] * scale, 0.8), tall);
    }
  }
  draw.fillStyle = colours["ink-3"];
  for (const [, begin] of scene.steps) draw.fillRect(begin * scale, 0, 1, height);
  const left = Math.max(0, view[0] * scale);
  const right = Math.min(width, view[1] * scale);
  draw.fillStyle = colours.surface;
  draw.globalAlpha = 0.66;
  draw.fillRect(0, 0, left, height);
  draw.fillRect(right, 0, width - right, height);
  draw.globalAlpha = 1;
  draw.strokeStyle = colours.accent;
  draw.lineWidth = 2;
  draw.strokeRect(left + 1, 1, Math.max(right - left - 2, 3), height - 2);
}

"use strict";
/* What the timeline says in words: the tooltip, a kernel's details, the sums of a range. */
import { timeText } from "./timeline_draw.js";

export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function say(text, values) {
  return text.replace(/%\((\w+)\)s/g, (_all, name) => values[name]);
}

const count = (value) => value.toLocaleString("en");
const percent = (share) => `${(share * 100).toFixed(1)}\u202f%`;

export function swatch(style) {
  const made = node("i", { class: "tl-swatch" });
  made.style.background = style.fill;
  return made;
}

/* about: the timeline's description; boxes[at] of lane `row`; details: the kernel's columns once they are here. */
export function tooltip(about, row, boxes, at, details, style) {
  const words = about.words;
  const many = boxes.count[at] > 1;
  const length = boxes.length[at];
  if (row.kind === "free") {
    const head = many ? say(words.gaps, { n: count(boxes.count[at]) }) : words.gap;
    const lines = [node("b", {}, head), line(words.duration, timeText(many ? boxes.busy[at] : length, 4))];
    if (about.causes.length > 1) lines.push(line(words.cause, about.causes[boxes.class_[at]][0]));
    if (!many) lines.push(line(words.endedBy, about.types[boxes.type[at]] || words.unknown), line(words.place, about.places[boxes.place[at]][0]));
    return lines;
  }
  if (row.kind === "steps") return [node("b", {}, boxName(about, row, boxes, at)), line(words.duration, timeText(length, 5))];
  const place = about.places[boxes.place[at]][0];
  if (row.kind === "layers" || row.kind === "blocks") {
    const title = row.kind === "layers" ? place : about.blocks[boxes.block[at]][1];
    const parts = [node("b", {}, swatch(style), title), row.kind === "blocks" ? node("div", {}, place) : null];
    return [...parts, line(words.duration, timeText(length, 4))].filter(Boolean);
  }
  if (many) {
    const busy = boxes.busy[at] / Math.max(length, 1);
    return [
      node("b", {}, swatch(style), about.families.find(([key]) => key === about.classes[boxes.class_[at]][1])[1]),
      node("div", {}, say(words.merged, { n: count(boxes.count[at]) })),
      line(words.duration, `${timeText(boxes.busy[at], 4)} · ${percent(Math.min(busy, 1))} ${words.busy}`),
      line(words.place, place),
    ];
  }
  const lines = [
    node("b", {}, swatch(style), about.types[boxes.type[at]] || words.unknown),
    line(words.duration, timeText(length, 4)),
    line(words.place, place),
    boxes.block[at] ? line(words.block, about.blocks[boxes.block[at]][1]) : null,
  ];
  if (details) {
    const columns = details.columns;
    if (columns.input_shapes) lines.push(line(words.shapes, columns.input_shapes));
    const used = utilisation(about, columns);
    if (used !== null) lines.push(line(words.utilisation, percent(used)));
    lines.splice(1, 0, node("div", { class: "tl-name" }, shortName(columns.name)));
  }
  return lines.filter(Boolean);
}

function line(name, value) {
  return node("div", { class: "tl-line" }, node("span", {}, name), node("span", {}, value));
}

function shortName(name) {
  return name && name.length > 90 ? `…${name.slice(-88)}` : name || "";
}

export function boxName(about, row, boxes, at, wide = Infinity) {
  if (row.kind === "steps") return (about.steps.find(([, begin]) => begin === boxes.start[at]) || [""])[0] || "";
  if (row.kind === "layers") {
    const [name, short] = about.places[boxes.place[at]];
    return wide > 90 ? name : short;
  }
  if (row.kind === "blocks") return about.blocks[boxes.block[at]][1];
  if (row.kind === "free") return wide > 58 ? timeText(boxes.length[at]) : "";
  return about.types[boxes.type[at]] || about.classes[boxes.class_[at]][0];
}

function utilisation(about, columns) {
  const { flops, duration_ns: duration } = columns;
  if (!flops || !duration || !about.peak_tflops) return null;
  return Number(flops) / Number(duration) / 1e-9 / (about.peak_tflops * 1e12);
}

/* The panel of one kernel; `acts` are what its buttons do. */
export function kernelPanel(about, details, zero, acts) {
  const { words } = about;
  const columns = details.columns;
  const used = utilisation(about, columns);
  const known = (value) => (value === null || value === undefined || value === "" ? words.unknown : String(value));
  const place = [columns.part === "layer" ? null : columns.part, columns.layer, columns.block, columns.pass].filter((part) => part !== null && part !== undefined && part !== "none");
  const block = about.blocks.find(([key]) => key === (columns.block || ""));
  const facts = [
    [words.duration, timeText(Number(columns.duration_ns), 5)],
    [words.start, details.start === null ? words.unknown : timeText(details.start - zero, 7)],
    [words.wait, columns.wait_ns === null || columns.wait_ns === undefined ? words.unknown : timeText(Number(columns.wait_ns), 4)],
    [words.core, known(columns.core)],
    [words.place, acts.placeName(columns) || (place.length ? place.join(" · ") : words.notAttributed)],
    [words.block, block && columns.block ? block[1] : words.unknown],
    [words.shapes, shapes(columns, words)],
    [words.utilisation, used === null ? words.unknown : `${percent(used)} ${say(words.ofPeak, { peak: count(about.peak_tflops) })}`],
  ];
  const all = Object.entries(columns).filter(([, value]) => value !== null && value !== "");
  return [
    head(words, columns.type || words.kernel, acts.close),
    node("p", { class: "mono small break" }, columns.name || ""),
    node("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [node("dt", {}, name), node("dd", {}, value)])),
    node("div", { class: "actions" },
      button(`‹ ${words.before}`, acts.before, details.before === null),
      button(`${words.after} ›`, acts.after, details.after === null),
      button(words.zoom, acts.zoom, false)),
    node("details", { class: "more" }, node("summary", {}, words.allColumns),
      node("dl", { class: "facts mono small" }, ...all.flatMap(([name, value]) => [node("dt", {}, name), node("dd", {}, String(value))]))),
  ];
}

/* A line for each operand, its dtype beside it; operands that were not given are left out. */
function shapes(columns, words) {
  const rows = [["→", columns.input_shapes, columns.input_dtypes], ["←", columns.output_shapes, columns.output_dtypes]].flatMap(([arrow, shape, dtype]) => {
    const dtypes = (dtype || "").split(";");
    return (shape || "").split(";").map((text, at) => (text ? node("li", {}, `${arrow} [${text}] `, node("small", {}, (dtypes[at] || "").replace(/^DT_/, ""))) : null)).filter(Boolean);
  });
  return rows.length ? node("ul", { class: "tl-shapes" }, ...rows) : words.unknown;
}

function button(text, act, disabled) {
  return node("button", { type: "button", class: "btn small", onclick: act, disabled }, text);
}

function head(words, title, close) {
  return node("header", {}, node("h3", {}, title), node("button", { type: "button", class: "iconbtn", "aria-label": words.close, onclick: close }, "×"));
}

/* The panel of a range: how its time is split, what ran, and its longest gaps. */
export function rangePanel(about, sums, range, zero, style, acts) {
  const { words } = about;
  const split = [["computing", sums.computing, "compute"], ["exposed", sums.exposed, "comm"], ["free", sums.free, "free"]];
  const bar = node("div", { class: "tl-split", role: "img", "aria-label": split.map(([key, ns]) => `${words[key]} ${timeText(ns)}`).join(", ") });
  for (const [, ns, css] of split) {
    const part = node("i", { class: css });
    part.style.width = `${(100 * ns) / Math.max(sums.length, 1)}%`;
    bar.append(part);
  }
  const layerName = ([part, layer]) => acts.placeName({ part, layer, pass: null }) || words.outside;
  return [
    head(words, `${words.range}: ${timeText(range[1] - range[0], 5)}`, acts.close),
    bar,
    node("dl", { class: "facts" }, ...split.flatMap(([key, ns, css]) => [
      node("dt", {}, node("span", { class: `swatch ${css}` }), ` ${words[key]}`),
      node("dd", {}, `${timeText(ns, 4)} · ${percent(ns / Math.max(sums.length, 1))}`)]),
      node("dt", {}, words.kernels), node("dd", {}, count(sums.kernels))),
    table(words.byClass, sums.classes, (row) => about.classes[row[0]][0], (row) => style("class", row[0])),
    table(words.byLayer, sums.layers.map(([part, layer, ns, n]) => [[part, layer], ns, n]), (row) => layerName(row[0]), () => style("plain", 0)),
    table(words.byBlock, sums.blocks, (row) => about.blocks[row[0]][1], (row) => style("block", row[0])),
    table(words.byType, sums.types, (row) => row[0] || words.unknown, () => style("plain", 0)),
    table(words.byCause, sums.causes, (row) => about.causes[row[0]][0], (row) => style("cause", row[0])),
    gapList(about, sums.gaps, acts),
    node("div", { class: "actions" }, button(words.zoom, acts.zoom, false)),
  ].filter(Boolean);
}

function table(title, rows, name, style) {
  if (!rows.length) return null;
  const most = rows[0][1];
  const lines = rows.slice(0, 8).map((row) => {
    const fill = node("i");
    fill.style.width = `${(100 * row[1]) / Math.max(most, 1)}%`;
    fill.style.background = style(row).fill;
    return node("tr", {}, node("th", { scope: "row" }, name(row), node("span", { class: "tl-bar" }, fill)), node("td", { class: "r muted" }, count(row[2])), node("td", { class: "r" }, timeText(row[1], 4)));
  });
  return node("table", { class: "tl-sums" }, node("caption", {}, title), node("tbody", {}, ...lines));
}

export function gapList(about, gaps, acts) {
  if (!gaps.length) return null;
  const { words } = about;
  const rows = gaps.slice(0, 8).map(([start, length, type, cause]) => {
    const text = say(words.gapBefore, { time: timeText(length, 3), type: type || words.unknown });
    return button(cause ? `${text} · ${about.causes[cause][0]}` : text, () => acts.goTo(start, length), false);
  });
  return node("div", { class: "tl-gaps" }, node("h4", {}, words.longestGaps), node("div", { class: "chips" }, ...rows));
}

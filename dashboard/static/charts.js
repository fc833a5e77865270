"use strict";
/* Draws every chart. The server sends ECharts options as JSON; colours are named after CSS tokens ("$compute") and
   formatters are named ("@ms"), so that one set of options serves both themes. */
const words = document.body.dataset;
const charts = new Map();
let onPaper = null; // the theme to return to while the page is printed
let library = null;

function echartsLoaded() {
  library ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = words.echarts;
    script.onload = () => resolve(window.echarts);
    script.onerror = reject;
    document.head.append(script);
  });
  return library;
}

const HUGE = 1e9;
const round = (value, digits = 3) => {
  const size = Math.abs(value);
  if (size >= HUGE) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  const decimals = size === 0 ? 0 : Math.max(0, Math.min(4, digits - 1 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en", { maximumFractionDigits: decimals });
};
function bytes(value) {
  for (const [unit, power] of [["TiB", 4], ["GiB", 3], ["MiB", 2], ["KiB", 1]]) {
    if (Math.abs(value) >= 1024 ** power) return `${round(value / 1024 ** power)}\u202f${unit}`;
  }
  return `${value}\u202fB`;
}
function ms(value) {
  if (Math.abs(value) >= 10000) return `${round(value / 1000)}\u202fs`;
  if (value !== 0 && Math.abs(value) < 1) return `${round(value * 1000)}\u202fµs`;
  return `${round(value)}\u202fms`;
}
const FORMATS = {
  ms, bytes,
  ms_axis: (value) => (Math.abs(value) >= 1e6 ? ms(value) : `${round(value)}\u202fms`), // one unit along an axis
  percent: (value) => `${round(value, 3)}\u202f%`,
  gbps: (value) => `${round(value)}\u202fGB/s`,
  number: (value) => round(value, 4),
  plain: (value) => String(value),
};
function format(name, value) {
  if (value === null || value === undefined || value === "-" || Number.isNaN(value)) return words.tUnknown;
  return typeof value === "number" ? (FORMATS[name] || FORMATS.number)(value) : String(value);
}

/* What a custom series draws for each of its values. */
const SPAN_SHARE = 0.64;
const SHAPES = {
  /* A box in the line value[0] from value[1] to value[2], with value[3] written in it where there is room. */
  span(params, api) {
    const [from, to] = [api.coord([api.value(1), api.value(0)]), api.coord([api.value(2), api.value(0)])];
    const height = api.size([0, 1])[1] * SPAN_SHARE;
    const box = { x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 1), height };
    const shape = window.echarts.graphic.clipRectByRect(box, params.coordSys);
    if (!shape) return null;
    const text = Number.isNaN(api.value(3)) || api.value(3) === undefined ? "" : String(api.value(3));
    const style = { fill: api.visual("color"), opacity: api.style().opacity, stroke: token("surface"), lineWidth: shape.width > 4 ? 1 : 0 };
    const label = textPx(text) + 6 < shape.width ? { style: { text, fill: token("surface"), fontSize: 11, fontWeight: 600 } } : undefined;
    return { type: "rect", shape: { ...shape, r: shape.width > 8 ? 2 : 0 }, style, textContent: label && { type: "text", ...label }, textConfig: { position: "inside" } };
  },
};

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/* Replaces named colours and formatters anywhere in the options. */
function resolve(value, key) {
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => resolve(item, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolve(item, name)]));
  }
  if (typeof value !== "string") return value;
  if (value.startsWith("$")) return token(value.slice(1));
  if (value.startsWith("@") && key === "formatter") {
    const name = value.slice(1);
    return (item) => format(name, item !== null && typeof item === "object" ? last(item.value) : item);
  }
  if (value.startsWith("@") && key === "renderItem") return SHAPES[value.slice(1)];
  return value;
}
const last = (value) => (Array.isArray(value) ? value[value.length - 1] : value);

function line(colour, key, value) {
  const row = document.createElement("div");
  const mark = document.createElement("i");
  mark.style.background = colour;
  const name = document.createElement("span");
  name.className = "k";
  name.textContent = key;
  const number = document.createElement("span");
  number.className = "v";
  number.textContent = value;
  row.append(mark, name, number);
  return row;
}

/* A tooltip built of nodes: names come from dumps and must never be read as HTML. */
function tooltip(spec) {
  return (params) => {
    const list = Array.isArray(params) ? params : [params];
    const box = document.createElement("div");
    box.className = "charttip";
    const title = document.createElement("b");
    const first = list[0];
    const extra = first.data && first.data.title;
    title.textContent = extra || first.axisValueLabel || first.name || first.seriesName || "";
    box.append(title);
    for (const item of list) {
      if (item.seriesName && item.seriesName.startsWith("_")) continue;
      if (first.data && first.data.lines) {
        for (const [key, text] of first.data.lines) box.append(line(item.color, key, text));
        break;
      }
      const value = last(item.value);
      if (list.length > 1 && (value === null || value === undefined || value === "-")) continue;
      let key = item.seriesName || "";
      if (spec.grid) key = [spec.y[item.value[1]], spec.x[item.value[0]]].join(spec.arrow ? " → " : " · ");
      box.append(line(typeof item.color === "string" ? item.color : token("accent"), key, format(spec.format, value)));
    }
    return box;
  };
}

function axis(base) {
  return (item) => ({
    ...base, ...item,
    axisLine: { ...item.axisLine, lineStyle: { color: token("line-strong") } },
    axisTick: { show: false },
    axisLabel: { color: token("ink-3"), fontSize: 11.5, hideOverlap: true, ...item.axisLabel },
    nameTextStyle: { color: token("ink-3"), fontSize: 11.5, ...item.nameTextStyle },
    splitLine: { show: item.type !== "category", ...item.splitLine, lineStyle: { color: token("line") } },
    splitArea: { show: false },
  });
}
const listed = (value) => (Array.isArray(value) ? value : value ? [value] : []);

/* Names on a category axis lie level where there is room for them, and within their column where they wrap. So do the
   names of marks; a pointer over those left out still tells them. */
const LETTER_PX = 6.3;
const WIDE_PX = 12.5;
const textPx = (text) => [...String(text)].reduce((sum, letter) => sum + (letter > "\u2e80" ? WIDE_PX : LETTER_PX), 0);
const CELL_LABEL_PX = 50;
const [STEEP, STEEPER] = [38, 58];
function spaced(options, width) {
  const names = options.xAxis && options.xAxis[0].data;
  if (!names) return;
  const label = options.xAxis[0].axisLabel;
  label.rotate ??= 0; // said each time: what was slanted in a narrow place would stay so in a wide one
  const column = (width - 70) / names.length;
  if (label.width) {
    label.width = Math.min(label.width, column - 4);
    // A word that no column holds would be cut: such names stand slanted.
    const longest = Math.max(...names.flatMap((name) => String(name).split(" ")).map((word) => (word > "\u2e80" ? 0 : textPx(word))));
    if (longest > label.width) Object.assign(label, { width: undefined, overflow: undefined, rotate: STEEP });
  }
  if (label.rotate && names.every((name) => textPx(name) < column - 6)) label.rotate = 0;
  else if (label.rotate && column < 34) label.rotate = STEEPER;
  for (const series of listed(options.series)) {
    if (series.type === "heatmap" && series.label && series.label.show && column < CELL_LABEL_PX) series.label.show = false;
    let end = -Infinity;
    for (const mark of (series.markLine || {}).data || []) {
      if (!mark.label || mark.label.show !== true || typeof mark.xAxis !== "number") continue;
      const middle = ((width - 80) * mark.xAxis) / names.length;
      const half = textPx(mark.name) / 2;
      mark.label.show = middle - half > end;
      if (mark.label.show) end = middle + half;
    }
  }
}

/* Names of shaded steps: one that would stand over another is left to the pointer. The warm-up, which comes first, stays. */
function spacedAreas(options, width) {
  const steps = listed(options.series).flatMap((series) => (series.data || []).map((point) => (Array.isArray(point) ? point[0] : null))).filter((step) => typeof step === "number");
  if (!steps.length) return;
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const place = (step) => 60 + ((width - 80) * ((step === "min" ? first : step) - first)) / (last - first || 1);
  for (const series of listed(options.series)) {
    const taken = [];
    for (const [start, end] of [...((series.markArea || {}).data || [])].reverse()) {
      const half = textPx(start.name) / 2;
      const left = start.xAxis === "min" ? place("min") : (place(start.xAxis) + place(end.xAxis)) / 2 - half;
      const free = taken.every(([from, to]) => left > to + 6 || left + 2 * half < from - 6);
      if (free) taken.push([left, left + 2 * half]);
      else start.label = { ...start.label, show: false };
    }
  }
}

/* Names of lines take two lines or three where one is too short, and the chart below begins lower; more are paged. */
const LEGEND_GAP = 16;
const LEGEND_LINE_PX = 28;
const LEGEND_PAD = 12;
function legendLines(options, item, width) {
  const names = item.show === false ? [] : listed(options.series).map((series) => series.name || "").filter((name) => name && !name.startsWith("_"));
  let [lines, used] = [1, 0];
  for (const name of names) {
    const wide = Math.min(textPx(name) + 16 + LEGEND_GAP, width);
    if (used && used + wide > width - LEGEND_PAD) [lines, used] = [lines + 1, 0];
    used += wide;
  }
  if (lines > 3) return { type: "scroll" };
  const grid = options.grid;
  if (grid && typeof grid.top === "number") grid.top += (lines - 1) * LEGEND_LINE_PX;
  return { type: "plain", width: width - LEGEND_PAD };
}

function themed(spec, width) {
  const options = resolve(spec.options);
  const font = getComputedStyle(document.body).fontFamily;
  options.textStyle = { fontFamily: font, color: token("ink-2") };
  options.animationDuration = 350;
  if (onPaper || matchMedia("(prefers-reduced-motion: reduce)").matches) options.animation = false;
  if (!spec.options.color) options.color = [1, 2, 3, 4, 5, 6, 7, 8].map((index) => token(`c${index}`));
  else options.color = resolve(spec.options.color);
  if (options.xAxis) options.xAxis = listed(options.xAxis).map(axis({}));
  if (options.yAxis) options.yAxis = listed(options.yAxis).map(axis({}));
  spaced(options, width);
  spacedAreas(options, width);
  options.legend = listed(options.legend).map((item) => ({
    ...item, icon: "roundRect", itemWidth: 11, itemHeight: 11, itemGap: LEGEND_GAP, left: 0, top: 0, ...legendLines(options, item, width),
    textStyle: { color: token("ink-2"), fontSize: 12, width: Math.max(width - 30, 60), overflow: "truncate" }, inactiveColor: token("line-strong"),
    pageIconColor: token("accent"), pageTextStyle: { color: token("ink-3") },
  }));
  if (options.visualMap) {
    const [low, high] = [options.visualMap.min, options.visualMap.max].map((value) => format(spec.format, value));
    Object.assign(options.visualMap, { text: [high, low] });
  }
  options.tooltip = {
    ...options.tooltip, confine: true, borderWidth: 1, borderColor: token("line"), backgroundColor: token("surface"),
    padding: [8, 12], extraCssText: "border-radius:9px;box-shadow:var(--shadow-2)", formatter: tooltip(spec),
    axisPointer: { ...(options.tooltip || {}).axisPointer, shadowStyle: { color: token("accent"), opacity: 0.07 }, lineStyle: { color: token("line-strong") } },
  };
  return options;
}

/* The same numbers as a table, for readers of tables and screen readers. */
function tableOf(spec) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const cell = (row, text, number) => {
    const node = row.insertCell();
    node.textContent = text;
    if (number) node.className = "r";
  };
  const title = (text, number) => {
    const node = document.createElement("th");
    node.scope = "col";
    node.textContent = text;
    if (number) node.className = "r";
    head.append(node);
  };
  const rows = spec.table;
  rows.columns.forEach((text, index) => title(text, index > 0));
  for (const values of rows.rows) {
    const row = body.insertRow();
    values.forEach((value, index) => cell(row, index ? format((rows.formats || [])[index] || spec.format, value) : String(value), index > 0));
  }
  return table;
}

function button(label, path, act) {
  const node = document.createElement("button");
  node.type = "button";
  node.className = "iconbtn";
  node.title = label;
  node.setAttribute("aria-label", label);
  node.innerHTML = `<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d="${path}"/></svg>`;
  node.addEventListener("click", () => act(node));
  return node;
}

function addTools(box, state) {
  const tools = box.closest("section, .card")?.querySelector("[data-chart-tools]");
  if (!tools || tools.childElementCount) return;
  tools.append(
    button(words.tTable, "M2 3.5h12v9H2zM2 6.5h12M6.5 6.5v6", (node) => toggleTable(box, state, node)),
    button(words.tImage, "M8 2.5V11M4.5 7.5L8 11l3.5-3.5M2.5 13.5h11", () => saveImage(box, state)),
  );
}

function toggleTable(box, state, node) {
  if (state.table) {
    state.table.remove();
    state.table = null;
    box.hidden = false;
  } else {
    state.table = document.createElement("div");
    state.table.className = "chart-table tablewrap";
    state.table.tabIndex = 0;
    state.table.append(tableOf(state.spec));
    box.after(state.table);
    box.hidden = true;
  }
  node.setAttribute("aria-pressed", String(Boolean(state.table)));
  node.title = state.table ? words.tChart : words.tTable;
  node.setAttribute("aria-label", node.title);
}

function saveImage(box, state) {
  const link = document.createElement("a");
  link.href = state.chart.getDataURL({ pixelRatio: 2, backgroundColor: token("surface") });
  link.download = `${box.dataset.chartTitle || "chart"}.png`;
  link.click();
}

function say(box, text) {
  const note = document.createElement("div");
  note.className = "chart-empty";
  note.textContent = text;
  box.replaceChildren(note);
  box.dataset.state = "empty";
}

/* Where a cell of a grid leads: the grid's link with what stands for its column and its line. */
function cellAddress(spec, value) {
  if (!spec.link || !Array.isArray(value)) return null;
  const query = new URLSearchParams();
  for (const [names, index] of [[spec.down, value[1]], [spec.across, value[0]]]) {
    for (const [key, list] of Object.entries(names || {})) query.set(key, list[index]);
  }
  return `${spec.link}?${query}#kernels`;
}

/* Dragging over the chart zooms to that range; a double click shows all again. */
function brush(chart) {
  chart.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true });
  chart.getZr().off("dblclick");
  chart.getZr().on("dblclick", () => chart.dispatchAction({ type: "dataZoom", start: 0, end: 100 }));
}

async function draw(box) {
  box.dataset.state = "loading";
  let spec;
  let echarts;
  try {
    const [answer, lib] = await Promise.all([fetch(box.dataset.chartUrl, { headers: { Accept: "application/json" } }), echartsLoaded()]);
    if (!answer.ok) throw new Error(String(answer.status));
    spec = await answer.json();
    echarts = lib;
  } catch {
    say(box, words.tFailed);
    return;
  }
  if (spec.empty) {
    say(box, spec.note || words.tNodata);
    return;
  }
  charts.get(box)?.chart.dispose();
  box.replaceChildren();
  if (spec.height) box.style.height = `${spec.height}px`;
  const chart = echarts.init(box, null, { renderer: spec.renderer || "canvas" });
  const state = { chart, spec, table: null };
  charts.set(box, state);
  chart.setOption(themed(spec, box.clientWidth));
  if (spec.brush) brush(chart);
  chart.on("click", (event) => {
    const address = (event.data && event.data.url) || cellAddress(spec, event.value);
    if (address) location.href = address;
  });
  box.dataset.state = "ready";
  addTools(box, state);
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "300px" });
/* What fits at one width may not fit at another: names are laid out anew. */
const resized = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const state = charts.get(entry.target);
    if (!state || onPaper) continue;
    const before = state.chart.getWidth();
    state.chart.resize();
    if (state.chart.getWidth() !== before) state.chart.setOption(themed(state.spec, state.chart.getWidth()));
  }
});

function watch(within) {
  for (const box of within.querySelectorAll("[data-chart-url]:not([data-state])")) {
    box.dataset.state = "waiting";
    seen.observe(box);
    resized.observe(box);
  }
}

/* A button sets one parameter of a chart's address: [data-chart-for=id] with data-param and data-value. */
document.addEventListener("click", (event) => {
  const choice = event.target.closest("[data-chart-for]");
  if (!choice) return;
  const box = document.getElementById(choice.dataset.chartFor);
  for (const other of choice.parentElement.children) other.setAttribute("aria-pressed", String(other === choice));
  const address = new URL(box.dataset.chartUrl, location.href);
  address.searchParams.set(choice.dataset.param, choice.dataset.value);
  box.dataset.chartUrl = address.pathname + address.search;
  draw(box);
});
function recolour() {
  for (const { chart, spec } of charts.values()) {
    chart.setOption(themed(spec, chart.getWidth()), true);
    if (spec.brush) brush(chart);
  }
}

/* Paper is white and narrow. */
const PAPER_PX = 690;
function toPaper() {
  if (onPaper) return;
  const root = document.documentElement;
  onPaper = { theme: root.dataset.theme };
  root.dataset.theme = "light";
  for (const [box, { chart }] of charts) chart.resize({ width: Math.min(PAPER_PX, box.clientWidth), height: box.clientHeight });
  recolour();
  for (const { chart } of charts.values()) chart.getZr().flush();
}
function fromPaper() {
  const root = document.documentElement;
  if (onPaper.theme) root.dataset.theme = onPaper.theme;
  else delete root.dataset.theme;
  onPaper = null;
  for (const { chart } of charts.values()) chart.resize({ width: "auto", height: "auto" });
  recolour();
}
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", fromPaper);

/* Prints the charts that nobody scrolled to as well. */
async function printPage() {
  await Promise.all([...document.querySelectorAll("[data-chart-url]")].filter((box) => box.dataset.state === "waiting").map(draw));
  toPaper();
  print();
}
document.addEventListener("click", (event) => { if (event.target.closest("[data-print]")) printPage(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "p" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  printPage();
});
document.addEventListener("themechange", recolour);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
document.addEventListener("htmx:afterSwap", (event) => watch(event.target));
watch(document);

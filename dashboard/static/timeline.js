"use strict";
/* The step page's timeline: starts it, and what stands around the canvas. */
import { readAddress, remember, writeAddress } from "./timeline_address.js";
import { listGaps, select, showRange, showView } from "./timeline_choice.js";
import { legendKeys, prepareStyles } from "./timeline_colours.js";
import { listenKeys } from "./timeline_keys.js";
import { node } from "./timeline_panel.js";
import { listenPointer } from "./timeline_pointer.js";
import { find, jump, sayFound } from "./timeline_search.js";
import { app, ask, box, canvas, fail, part, search } from "./timeline_state.js";
import { Tiles } from "./timeline_tiles.js";
import { fit, look, padded, placeLanes, redraw, zoom } from "./timeline_view.js";

function settle() {
  if (box.dataset.state !== "failed") box.dataset.state = app.tiles.busy ? "loading" : "ready";
  redraw();
}

function recolour() {
  prepareStyles();
  legend();
  listGaps();
  redraw();
}

function legend() {
  part("legend").replaceChildren(...legendKeys().map(([key, name, style]) => {
    const chip = node("i", { class: "tl-swatch" });
    chip.style.background = style.fill;
    const choose = () => { app.only = app.only === key ? null : key; legend(); remember(); redraw(); };
    return node("button", { type: "button", class: "tl-key", "aria-pressed": String(app.only === key), onclick: choose }, chip, name);
  }));
}

function setColour(colour, only = null) {
  Object.assign(app, { colour, only });
  for (const button of box.querySelectorAll("[data-colour]")) button.setAttribute("aria-pressed", String(button.dataset.colour === colour));
  legend();
}

function goToStep(label) {
  const { about } = app;
  about.step = about.steps.find(([name]) => String(name) === label) || ["", 0, about.end];
  fit();
  if (app.text) find(app.text, false);
}

/* Shows what an address asks for; whether that tells where to look. */
async function restore(hash = location.hash) {
  const wanted = readAddress(hash);
  if (!wanted) return false;
  setColour(wanted.colour, wanted.only);
  if (wanted.view) look(wanted.view, !app.tiles.kept.size);
  app.range = wanted.range;
  if (wanted.range) showRange();
  if (wanted.text) { part("q").value = wanted.text; find(wanted.text, false); }
  if (wanted.kernel !== null) await select({ row: wanted.kernel }, !wanted.view);
  return Boolean(wanted.view) || wanted.namesKernel;
}

/* A link to a kernel or a view was followed; by now remember() may have written over location.hash. */
function goToAddress(event) {
  const { hash } = new URL(event.newURL);
  if (hash.includes("=")) restore(hash).then(() => box.scrollIntoView({ block: "nearest" }));
}

async function copyLink() {
  writeAddress();
  const button = part("link");
  try { await navigator.clipboard.writeText(location.href); } catch { prompt("", location.href); return; }
  const label = button.querySelector("span");
  const before = label.textContent;
  label.textContent = app.about.words.copied;
  setTimeout(() => { label.textContent = before; }, 1500);
}

function listenTools() {
  const on = (name, act) => part(name).addEventListener("click", act);
  on("in", () => zoom(0.5));
  on("out", () => zoom(2));
  on("fit", fit);
  on("sum", showView);
  on("pick", () => { app.picking = !app.picking; part("pick").setAttribute("aria-pressed", String(app.picking)); });
  on("link", copyLink);
  on("find-before", () => jump(-1));
  on("find-after", () => jump(1));
  part("step")?.addEventListener("change", (event) => goToStep(event.target.value));
  for (const button of box.querySelectorAll("[data-colour]")) button.addEventListener("click", () => { setColour(button.dataset.colour); remember(); redraw(); });
  part("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = part("q").value.trim();
    if (text === app.text && search.total) jump(1);
    else find(text);
  });
  part("q").addEventListener("search", () => { if (!part("q").value) find(""); });
}

function listenPage() {
  document.addEventListener("themechange", recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("hashchange", goToAddress);
  new ResizeObserver(() => { placeLanes(); app.tiles.want(app.aim, app.width); redraw(); }).observe(canvas.parentElement);
}

/* The layer that the address asks for, else the step. */
function lookFirst() {
  const { focus, step } = app.about;
  if (!focus) { look(padded(step), true); return; }
  setColour("layer", new URLSearchParams(location.search).get("layer"));
  const more = (focus[1] - focus[0]) * 0.3;
  look([focus[0] - more, focus[1] + more], true);
}

async function start() {
  const params = new URLSearchParams(location.search);
  const wanted = ["step", "layer", "block"].filter((name) => params.get(name));
  try {
    app.about = await ask("", Object.fromEntries(wanted.map((name) => [name, params.get(name)])));
  } catch {
    fail();
    return;
  }
  app.tiles = new Tiles(box.dataset.timeline, app.about.version, app.about.end, settle, fail);
  prepareStyles();
  setColour("class");
  placeLanes();
  listGaps();
  if (part("step")) part("step").value = app.about.step[0] ?? "";
  listenPointer();
  listenKeys();
  listenTools();
  listenPage();
  app.tiles.fetch(app.tiles.top, 0);
  if (!(await restore())) lookFirst();
  sayFound();
}

if (box) start();

"use strict";
/* The address holds the view: times, colours, the selected kernel or range, the search. */
import { app } from "./timeline_state.js";

const NAMES = ["t", "c", "o", "k", "s", "q"];
let noting = 0;

/* Writing it again and again while the view moves would be refused by browsers. */
export function remember() {
  clearTimeout(noting);
  noting = setTimeout(writeAddress, 250);
}

export function writeAddress() {
  history.replaceState(history.state, "", address());
}

export function address() {
  const values = new URLSearchParams();
  const times = (range) => range.map((time) => Math.round(time)).join("_");
  values.set("t", times(app.aim));
  if (app.colour !== "class") values.set("c", app.colour);
  if (app.only !== null) values.set("o", app.only);
  if (app.selected) values.set("k", app.selected.row);
  if (app.range) values.set("s", times(app.range));
  if (app.text) values.set("q", app.text);
  return `${location.pathname}${location.search}#${values}`;
}

const rangeOf = (text) => {
  const found = (text || "").split("_").map(Number);
  return found.length === 2 && found.every(Number.isFinite) && found[1] > found[0] ? found : null;
};

/* What an address asks for; null where it asks for nothing. */
export function readAddress(hash) {
  clearTimeout(noting);
  const values = new URLSearchParams(hash.slice(1));
  if (!NAMES.some((name) => values.has(name))) return null;
  const colour = values.get("c") || app.colour;
  const kernel = values.get("k") || "";
  return {
    view: rangeOf(values.get("t")),
    range: rangeOf(values.get("s")),
    colour: ["class", "layer", "block"].includes(colour) ? colour : "class",
    only: values.get("o"),
    text: values.get("q") || "",
    kernel: /^\d+$/.test(kernel) ? kernel : null,
    namesKernel: values.has("k"),
  };
}

"use strict";
/* Which colour a box has, in this theme and by what is chosen to colour by. */
import { palette } from "./timeline_draw.js";
import { app } from "./timeline_state.js";

export let colours = null;
export let styles = {};

export const plain = (slot, shade = 0) => colours.style(slot, shade);

export function styleOf(kind, code) {
  const { about } = app;
  if (kind === "class") return plain(about.families.find(([key]) => key === about.classes[code][1])[2]);
  if (kind === "block") return plain(about.blocks[code][2], about.blocks[code][3]);
  if (kind === "place") return plain(about.places[code][3], about.places[code][4]);
  if (kind === "cause") return about.causes[code][1] ? plain(about.causes[code][1], 1) : { fill: colours.free, ink: colours.ink };
  return plain(1);
}

export function prepareStyles() {
  const { about } = app;
  colours = palette();
  const table = (kind, values) => values.map((_value, code) => styleOf(kind, code));
  styles = { class: table("class", about.classes), block: table("block", about.blocks), layer: table("place", about.places),
    cause: table("cause", about.causes), step: { fill: colours["surface-3"], ink: colours.ink } };
}

export function paint(row, boxes, at) {
  if (row.kind === "steps") return styles.step;
  if (row.kind === "free") return styles.cause[boxes.class_[at]];
  if (row.kind === "layers") return styles.layer[boxes.place[at]];
  if (row.kind === "blocks") return styles.block[boxes.block[at]];
  if (app.colour === "layer") return styles.layer[boxes.place[at]];
  return app.colour === "block" ? styles.block[boxes.block[at]] : styles.class[boxes.class_[at]];
}

const KEYS = {
  class: (about, boxes, at) => about.classes[boxes.class_[at]][1],
  block: (about, boxes, at) => about.blocks[boxes.block[at]][0],
  layer: (about, boxes, at) => String(about.places[boxes.place[at]][2] ?? ""),
};
/* Lanes that have a colour of their own stay as they are; the others show the legend's one key. */
const KEPT = { steps: () => true, free: () => true, layers: () => app.colour !== "layer", blocks: () => app.colour !== "block" };

export function chosen(row, boxes, at) {
  return KEPT[row.kind]?.() || KEYS[app.colour](app.about, boxes, at) === app.only;
}

/* The keys of the legend: [key, name, style]. */
export function legendKeys() {
  const { about } = app;
  if (app.colour === "class") {
    return about.families.filter(([key]) => about.classes.some((name) => name[1] === key)).map(([key, name, slot]) => [key, name, plain(slot)]);
  }
  if (app.colour === "block") return about.blocks.filter(([key]) => key).map(([key, name, slot, shade]) => [key, name, plain(slot, shade)]);
  const layers = new Map(about.places.filter((place) => place[2] !== null).map((place) => [place[2], place]));
  return [...layers.entries()].sort((a, b) => a[0] - b[0]).map(([layer, place]) => [String(layer), place[1], plain(place[3])]);
}

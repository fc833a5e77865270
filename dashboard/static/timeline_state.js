"use strict";
/* What the modules of the timeline share: its elements, what the server said of the step, what is looked at. */
export const box = document.querySelector("[data-timeline]");
export const part = (name) => box.querySelector(`[data-${name}]`);
const found = (name) => (box ? part(name) : null);
export const canvas = found("canvas");
export const map = found("map");
export const tip = found("tip");
export const panel = found("panel");

export const app = {
  about: null, // the server's description of the step
  tiles: null,
  rows: [], // lanes as they are laid out
  width: 0,
  height: 0,
  view: [0, 1], // what is drawn
  aim: [0, 1], // where the view is going
  colour: "class",
  only: null, // the one key of the legend that is shown
  selected: null, // a kernel's details
  range: null,
  text: "", // what is searched for
  picking: false,
  held: new Set(), // keys that are down
  pointerShare: null, // where over the canvas the pointer is, 0 to 1
};
export const search = { starts: [], rows: [], lengths: [], at: -1, total: 0 };

export async function ask(path, values = {}) {
  const response = await fetch(`${box.dataset.timeline}${path}?${new URLSearchParams(values)}`, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

export function fail() { box.dataset.state = "failed"; }

export const isKernels = (row) => row.kind === "compute" || row.kind === "communication";

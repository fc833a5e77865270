"use strict";
/* Keys: on the canvas alone, so that the page keeps its own. */
import { across, along, hide, showRange } from "./timeline_choice.js";
import { jump } from "./timeline_search.js";
import { app, canvas, panel, part } from "./timeline_state.js";
import { fit, MOVES, startMove } from "./timeline_view.js";

const ACTS = {
  f: fit, 0: fit,
  n: () => jump(1), p: () => jump(-1),
  ".": () => along("after"), ",": () => along("before"),
  arrowup: () => across(-1), arrowdown: () => across(1),
  r: () => showRange([...app.aim]),
  "/": () => part("q").focus(),
  escape: () => { if (!panel.hidden) hide(); },
  enter: () => { if (!panel.hidden) panel.querySelector("button").focus(); },
};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  if (!MOVES[key] && !ACTS[key]) return;
  event.stopPropagation();
  event.preventDefault();
  if (ACTS[key]) ACTS[key]();
  else if (!app.held.has(key)) startMove(key);
}

export function listenKeys() {
  const release = () => app.held.clear();
  canvas.addEventListener("keydown", press);
  canvas.addEventListener("keyup", (event) => app.held.delete(event.key.toLowerCase()));
  canvas.addEventListener("blur", release);
  for (const name of ["blur", "visibilitychange"]) addEventListener(name, release);
}

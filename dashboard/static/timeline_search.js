"use strict";
/* Search for kernels by name or type, and the way from one match to the next. */
import { remember } from "./timeline_address.js";
import { select } from "./timeline_choice.js";
import { firstAt } from "./timeline_draw.js";
import { say } from "./timeline_panel.js";
import { app, ask, box, fail, part, search } from "./timeline_state.js";
import { look, redraw } from "./timeline_view.js";

let asked = 0;

export async function find(text, andGo = true) {
  const ticket = ++asked;
  app.text = text.trim();
  Object.assign(search, { starts: [], rows: [], lengths: [], at: -1, total: 0 });
  if (app.text) {
    box.dataset.search = "busy";
    try {
      const found = await ask("find/", { q: app.text, begin: app.about.step[1], end: app.about.step[2] });
      if (ticket !== asked) return;
      Object.assign(search, found);
    } catch { fail(); }
    box.dataset.search = "done";
  }
  sayFound();
  if (andGo && search.total) jump(1);
  remember();
  redraw();
}

export function sayFound() {
  const { words } = app.about;
  const at = search.at < 0 ? "–" : (search.at + 1).toLocaleString("en");
  part("found").textContent = !app.text ? "" : search.total ? say(words.found, { at, total: search.total.toLocaleString("en") }) : words.noneFound;
  for (const name of ["find-before", "find-after"]) part(name).disabled = !search.total;
}

export function jump(by) {
  const size = search.starts.length;
  if (!size) return;
  const { aim } = app;
  if (search.at < 0) search.at = (firstAt({ start: search.starts }, aim[0]) - (by > 0 ? 1 : 0) + size) % size;
  search.at = (search.at + by + size) % size;
  sayFound();
  const [start, length] = [search.starts[search.at], search.lengths[search.at]];
  // Close enough to see the kernel, no closer than the view is.
  const span = Math.min(aim[1] - aim[0], Math.max(length * 30, 20_000));
  look([start + length / 2 - span / 2, start + length / 2 + span / 2]);
  select({ row: search.rows[search.at] });
}

"use strict";
/* Keys of every page, and what is found while one types into the search field. */

/* Escape closes what lies over the page; the focus goes back to what opened it. */
function putAway() {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    const inside = menu.contains(document.activeElement);
    menu.open = false;
    if (inside) menu.querySelector("summary").focus();
  }
  hideSuggestions();
  document.querySelector(".tip:is(:hover, :focus-within)")?.classList.add("away");
}
for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, () => {
    for (const tip of document.querySelectorAll(".tip.away:not(:hover, :focus-within)")) tip.classList.remove("away");
  });
}

const KEYS = {
  "/": toSearch,
  "?": () => document.getElementById("keys")?.showModal(),
  j: () => move(1, STOPS), k: () => move(-1, STOPS),
  "]": () => move(1, SECTIONS), "[": () => move(-1, SECTIONS),
  x: () => document.activeElement.closest("tr")?.querySelector("[data-select]")?.click(),
  c: () => document.querySelector("[data-selectbar] [data-least]:enabled")?.click(),
};

document.addEventListener("keydown", (event) => {
  // Keys that choose among an input method's words are its own; a browser that fills in a field tells no key.
  if (event.isComposing || !event.key) return;
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape") putAway();
  if (event.key.startsWith("Arrow") && moveInList(event)) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "k" && toSearch()) event.preventDefault();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (going) goTo(event.key);
  else if (KEYS[event.key]) {
    if (event.key !== "x" && event.key !== "c") event.preventDefault();
    KEYS[event.key]();
  }
  going = event.key === "g";
});

/* g and then the letter of a link of the main menu follows it; where a project must be named first, its menu opens. */
let going = false;
function goTo(letter) {
  const link = document.querySelector(`[data-go="${CSS.escape(letter)}"]`);
  if (link) link.click();
  else if ("prto".includes(letter)) openProjects();
}
function openProjects() {
  const menu = document.querySelector(".nav details[data-menu]");
  if (!menu) return;
  menu.open = true;
  menu.querySelector(".menu-list a")?.focus();
}

/* j and k walk what a page lists: rows, cards of projects, items of the checklist. [ and ] walk its sections. From
   wherever the focus is, in the order of the page; Enter then opens what has it. */
const STOPS = "[data-rows] td.name a, [data-stop]";
const SECTIONS = "main h2";
function move(by, selector) {
  const there = [...document.querySelectorAll(selector)].filter((node) => node.checkVisibility() && !node.closest("dialog"));
  const at = document.activeElement;
  const before = (node) => at.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_PRECEDING;
  const after = (node) => at.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING;
  const from = at === document.body ? there[0] : by > 0 ? there.find(after) : there.findLast(before);
  if (!from) return;
  if (selector === SECTIONS) from.tabIndex = -1;
  from.focus({ preventScroll: true });
  from.scrollIntoView({ block: selector === SECTIONS ? "start" : "center" });
}

/* Arrows walk an open menu and what the search has found. */
function moveInList(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return false;
  const list = event.target.closest("details[data-menu][open], form:has([data-suggestions])");
  if (!list || list.matches("form") && suggestions().hidden) return false;
  const stops = [...list.querySelectorAll("summary, [data-search], .menu-list a, .menu-list button")];
  const next = stops[stops.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
  if (!stops.includes(event.target)) return false;
  event.preventDefault();
  next?.focus();
  return true;
}

const suggestions = () => document.querySelector("[data-suggestions]");
function toSearch() {
  const field = document.querySelector("[data-search]");
  field?.focus();
  field?.select();
  return Boolean(field);
}
function hideSuggestions() {
  const box = suggestions();
  if (!box || box.hidden) return;
  if (box.contains(document.activeElement)) toSearch();
  box.hidden = true;
}
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.target.matches?.("[data-suggestions]")) event.target.hidden = !event.target.querySelector("a, p");
});
document.addEventListener("focusout", (event) => {
  const box = suggestions();
  if (box && event.target.closest("form")?.contains(box) && !box.parentElement.contains(event.relatedTarget)) box.hidden = true;
});

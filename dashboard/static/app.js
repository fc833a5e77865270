"use strict";
/* What every page needs: theme, menus, copy buttons, row selection, dialogs. Keys: keys.js. */
const root = document.documentElement;

function theme() {
  return root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  document.cookie = `theme=${next}; path=/; max-age=31536000; samesite=lax`;
  document.dispatchEvent(new CustomEvent("themechange"));
}

/* Browsers give the clipboard to pages over HTTPS alone; inside one's own network plain HTTP is common. */
async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

async function copy(button, text) {
  await copyText(text);
  const label = button.querySelector("[data-label]") || button;
  const before = label.textContent;
  label.textContent = document.body.dataset.tCopied;
  setTimeout(() => { label.textContent = before; }, 1500);
}

function updateSelection(box) {
  const form = box.closest("form");
  const bar = form.querySelector("[data-selectbar]");
  const chosen = form.querySelectorAll("[data-select]:checked").length;
  bar.hidden = chosen === 0;
  bar.querySelector("[data-selected]").textContent = chosen;
  const all = form.querySelector("[data-select-all]");
  const rows = form.querySelectorAll("[data-select]").length;
  all.checked = chosen === rows;
  all.indeterminate = chosen > 0 && chosen < rows;
  bar.querySelector("[data-least]").disabled = chosen < 2 || chosen > 8;
}

function chooseAll(box) {
  for (const one of box.closest("form").querySelectorAll("[data-select]")) one.checked = box.checked;
  updateSelection(box);
}

/* What a new person is told to do first goes for good once it is put away. */
function endStart(section) {
  document.cookie = "start=done; path=/; max-age=31536000; samesite=lax";
  section.remove();
}

function filterRows(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll(`#${input.dataset.filterRows} [data-row]`)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  for (const more of document.querySelectorAll(`#${input.dataset.filterRows} details`)) more.open = words.length > 0;
}

function openDialog(button) {
  const dialog = document.getElementById(button.dataset.dialog);
  for (const [key, value] of Object.entries(button.dataset)) {
    if (!key.startsWith("set")) continue;
    const name = key.slice(3).toLowerCase();
    for (const node of dialog.querySelectorAll(`[name="${name}"]`)) node.value = value;
    for (const node of dialog.querySelectorAll(`[data-show="${name}"]`)) node.textContent = value;
  }
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const on = (selector) => event.target.closest(selector);
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  if (on("[data-theme-switch]")) switchTheme();
  if (on("[data-copy]")) copy(on("[data-copy]"), document.getElementById(on("[data-copy]").dataset.copy).innerText);
  if (on("[data-copy-address]")) copy(on("[data-copy-address]"), location.href);
  if (on("[data-dialog]")) openDialog(on("[data-dialog]"));
  if (on("[data-close]")) on("dialog").close();
  if (on("[data-start-done]")) endStart(on("[data-start]"));
});

document.addEventListener("change", (event) => {
  const field = event.target;
  if (field.matches("[data-select]")) updateSelection(field);
  if (field.matches("[data-select-all]")) chooseAll(field);
  if (field.matches("[data-submit]")) field.form.requestSubmit();
});

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-filter-rows]")) filterRows(event.target);
});

/* The chosen columns go into the address as one short list. */
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-columns]")) return;
  const boxes = [...event.target.querySelectorAll("input[type=checkbox]")];
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name: "columns", value: boxes.filter((box) => box.checked).map((box) => box.value).join(",") });
  for (const box of boxes) box.disabled = true;
  event.target.append(field);
});

/* Empty fields stay out of the address of a filter form. */
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-clean]")) return;
  for (const field of event.target.elements) {
    if (field.name && field.value === "") field.disabled = true;
  }
});
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("[data-clean] [disabled]")) field.disabled = false;
});

/* A table wider than its place is scrolled by keys too. */
const REACHED = "a[href], button, input, select, textarea, summary";
const scrollers = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const wider = target.scrollWidth > target.clientWidth + 1;
    if (wider && !target.hasAttribute("tabindex") && !target.querySelector(REACHED)) target.dataset.scrolls = target.tabIndex = 0;
    if (!wider && "scrolls" in target.dataset) {
      target.removeAttribute("tabindex");
      delete target.dataset.scrolls;
    }
  }
});
function watchScrollers(within) {
  for (const box of within.querySelectorAll(".tablewrap")) scrollers.observe(box);
}
document.addEventListener("htmx:afterSwap", () => watchScrollers(document));
watchScrollers(document);

/* A part of a page that is asked for once nobody is signed in any more is answered with the sign-in page. */
document.addEventListener("htmx:beforeSwap", (event) => {
  if (!event.detail.xhr.responseURL.includes("/accounts/login/?next=")) return;
  event.preventDefault();
  location.reload();
});

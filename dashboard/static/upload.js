"use strict";
/* Sends an archive or a folder from the browser: announces it, sends each file by tus 1.0 in pieces, asks the server
   where it was after any failure, and follows the analysis. */
const form = document.querySelector("[data-upload]");
const words = form.dataset;
const list = form.querySelector("[data-list]");
const drop = form.querySelector("[data-drop]");
const PIECE = 8 * 1024 * 1024;
const ATTEMPTS = 8;
const hints = JSON.parse(words.hints);
let chosen = [];

/* What the server says of a refusal, with its code: a hint in the reader's language belongs to each. */
const refusal = (message, code) => Object.assign(new Error(message), { code });

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

async function api(method, path, body) {
  const answer = await fetch(`/api/v1${path}`, {
    method,
    headers: { "Content-Type": "application/json", "X-CSRFToken": words.csrf, "Stepscope-Protocol": "1" },
    body: body && JSON.stringify(body),
  });
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw refused(answer, data);
  return data;
}

function tus(method, url, headers, body) {
  return fetch(url, { method, headers: { "Tus-Resumable": "1.0.0", "X-CSRFToken": words.csrf, ...headers }, body });
}

async function begin(archive, item) {
  const answer = await tus("POST", "/api/v1/files", {
    "Upload-Length": String(item.file.size),
    "Upload-Metadata": `archive ${base64(String(archive))},name ${base64(item.name)}`,
  });
  if (answer.status !== 201) throw await reason(answer);
  return new URL(answer.headers.get("Location"), location.href).pathname;
}

function refused(answer, data) {
  return data.error ? refusal(data.error.message, data.error.code) : refusal(`HTTP ${answer.status}`, "");
}
async function reason(answer) {
  return refused(answer, await answer.json().catch(() => ({})));
}

async function send(archive, item, progress) {
  const url = await begin(archive, item);
  let offset = await offsetOf(url);
  let failures = 0;
  while (offset < item.file.size) {
    try {
      const piece = item.file.slice(offset, offset + PIECE);
      const answer = await tus("PATCH", url, { "Content-Type": "application/offset+octet-stream", "Upload-Offset": String(offset) }, piece);
      if (answer.status === 413 || answer.status === 403 || answer.status === 404) throw Object.assign(await reason(answer), { final: true });
      if (answer.status !== 204) throw await reason(answer);
      offset = Number(answer.headers.get("Upload-Offset"));
      failures = 0;
    } catch (error) {
      failures += 1;
      if (error.final || failures >= ATTEMPTS) throw error;
      progress(offset, words.tRetry);
      await wait(Math.min(30000, 500 * 2 ** failures));
      offset = await offsetOf(url).catch(() => offset);
    }
    progress(offset);
  }
}

async function offsetOf(url) {
  const answer = await tus("HEAD", url, {});
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return Number(answer.headers.get("Upload-Offset"));
}

function row(title) {
  const item = document.createElement("li");
  const name = document.createElement("span");
  name.textContent = title;
  name.className = "break";
  const bar = document.createElement("progress");
  bar.max = 1;
  bar.value = 0;
  bar.setAttribute("aria-label", title);
  const state = document.createElement("span");
  state.className = "badge";
  item.append(name, bar, state);
  list.append(item);
  return { bar, say: (text, css = "") => { state.textContent = text; state.className = `badge ${css}`; }, item };
}

async function follow(id, line) {
  for (;;) {
    const { archive } = await api("GET", `/archives/${id}`);
    if (archive.state === "failed") throw refusal(archive.error, "analysis");
    line.say(archive.state === "waiting" ? words.tWaiting : words.tUnpacking, "digesting live");
    if (archive.captures.length && !["receiving", "waiting", "unpacking"].includes(archive.state)) return archive;
    await wait(1500);
  }
}

/* A job prints its arguments at the top of its log: of scripts and logs no more than a config may have is sent. Of a
   YAML that is larger one byte more, so that the server refuses it by its name. The API takes no NUL. */
const LETTER_BYTES = 4;
async function configText(config) {
  const whole = /\.(ya?ml|json)$/i.test(config.name);
  const text = await config.slice(0, Number(form.elements.config.dataset.most) + (whole ? 1 : -LETTER_BYTES)).text();
  return text.replaceAll("\0", whole ? "\ufffd" : "");
}

async function upload(files, run, config) {
  const line = row(files.length === 1 ? files[0].name : `${files[0].name.split("/")[0]} (${files.length} ${words.tFiles})`);
  const total = files.reduce((sum, item) => sum + item.file.size, 0) || 1;
  let done = 0;
  try {
    line.say(words.tSending, "info");
    const body = { run, files: files.map((item) => ({ name: item.name, size: item.file.size })) };
    if (config) body.config = { name: config.name, text: await configText(config) };
    const { archive } = await api("POST", `/projects/${words.slug}/archives`, body);
    for (const item of files) {
      await send(archive.id, item, (offset, text) => {
        line.bar.value = (done + offset) / total;
        line.say(text || words.tSending, text ? "warn" : "info");
      });
      done += item.file.size;
    }
    line.bar.value = 1;
    await api("POST", `/archives/${archive.id}/complete`);
    const found = await follow(archive.id, line);
    line.say(words.tDone, "pass");
    for (const capture of found.captures) {
      const link = document.createElement("a");
      link.href = new URL(capture.url).pathname;
      link.textContent = `${words.tOpen}: ${capture.key}`;
      line.item.append(link);
    }
  } catch (error) {
    line.say(words.tFailed, "fail");
    const note = document.createElement("span");
    note.className = "bad break";
    note.textContent = error.message;
    line.item.append(note);
    explain(line.item, error);
  }
}

/* fetch throws a TypeError where nobody answers. */
function explain(item, error) {
  const text = hints[error instanceof TypeError ? "network" : error.code];
  if (!text) return;
  const hint = document.createElement("span");
  hint.className = "small muted";
  hint.textContent = text;
  item.append(hint);
}

function choose(items) {
  chosen = items.filter((item) => item.file.size >= 0 && !item.name.split("/").some((part) => part.startsWith(".DS_")));
  form.querySelector("[data-chosen]").textContent = chosen.length === 1 ? chosen[0].name : `${chosen.length} ${words.tFiles}`;
}

/* Folders arrive as entries that are read a batch at a time. */
async function entriesOf(entry, path = "") {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
    return [{ name: path + entry.name, file }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (!batch.length) break;
    for (const child of batch) found.push(...await entriesOf(child, `${path}${entry.name}/`));
  }
  return found;
}

for (const field of form.querySelectorAll("[data-files]")) {
  field.addEventListener("change", () => choose([...field.files].map((file) => ({ name: file.webkitRelativePath || file.name, file }))));
}
for (const kind of ["dragenter", "dragover"]) {
  drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  const files = [...event.dataTransfer.files]; // read now: the list is empty once this event is over
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  // What another program drags in may have no entry of the file system.
  if (!entries.length) choose(files.map((file) => ({ name: file.name, file })));
  else choose((await Promise.all(entries.map((entry) => entriesOf(entry)))).flat());
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!chosen.length) {
    form.querySelector("[data-chosen]").textContent = words.tNone;
    return;
  }
  const button = form.querySelector("button[type=submit]");
  button.disabled = true;
  await upload(chosen, form.elements.run.value, form.elements.config.files[0]);
  button.disabled = false;
});

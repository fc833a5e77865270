"use strict";
/* Boxes from the server, kept as tiles: a level's bucket is 2^level ns, a tile has 1024 of them. */
export const BUCKETS = 1024;
const KEPT = 160;

function unpacked(lane, begin) {
  const size = lane.s.length;
  const column = (name) => lane[name] || new Uint8Array(size);
  const start = new Float64Array(size);
  let time = begin;
  lane.s.forEach((by, at) => { time += by; start[at] = time; });
  const length = Float64Array.from(column("d"));
  const longest = length.reduce((most, value) => Math.max(most, value), 0);
  return { start, length, longest, count: lane.n || new Uint8Array(size).fill(1), busy: lane.u || length, row: column("r"), class_: column("c"), block: column("b"), place: column("p"), type: column("y") };
}

export class Tiles {
  /* `changed` is called when a tile has come or a request has ended; `failed` when one could not be answered. */
  constructor(url, version, end, changed, failed) {
    Object.assign(this, { url, version, end, changed, failed, kept: new Map(), waiting: new Map() });
    this.top = Math.max(0, Math.ceil(Math.log2((end + 1) / BUCKETS)));
  }

  get busy() { return this.waiting.size > 0; }

  static level(span, width) {
    return Math.max(0, Math.ceil(Math.log2(Math.max(span / Math.max(width, 1), 1))));
  }

  fetch(level, at) {
    const key = `${level}:${at}`;
    const span = BUCKETS * 2 ** level;
    if (this.kept.has(key) || this.waiting.has(key) || at < 0 || at * span > this.end) return;
    const stop = new AbortController();
    this.waiting.set(key, stop);
    const values = new URLSearchParams({ begin: at * span, end: (at + 1) * span, buckets: BUCKETS, v: this.version });
    fetch(`${this.url}boxes/?${values}`, { signal: stop.signal })
      .then((response) => { if (!response.ok) throw new Error(response.status); return response.json(); })
      .then((found) => {
        this.kept.set(key, new Map(Object.entries(found.lanes).map(([id, lane]) => [Number(id), unpacked(lane, found.begin)])));
        if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
      })
      .catch((error) => { if (error.name !== "AbortError") this.failed(); })
      .finally(() => {
        if (this.waiting.get(key) === stop) this.waiting.delete(key);
        this.changed();
      });
  }

  /* Asks for what a range needs and its neighbours; drops requests that it has no use for. */
  want(range, width) {
    const level = Tiles.level(range[1] - range[0], width);
    const span = BUCKETS * 2 ** level;
    const [first, final] = range.map((time) => Math.floor(time / span));
    for (const [key, stop] of this.waiting) {
      const [other, at] = key.split(":").map(Number);
      if (other === this.top || (other === level && at >= first - 2 && at <= final + 2)) continue;
      this.waiting.delete(key);
      stop.abort();
    }
    for (let at = first; at <= final; at += 1) this.fetch(level, at);
    this.fetch(level, final + 1);
    this.fetch(level, first - 1);
  }

  cached(level, at) {
    const key = `${level}:${at}`;
    const found = this.kept.get(key);
    if (found) { // the last used go last
      this.kept.delete(key);
      this.kept.set(key, found);
    }
    return found;
  }

  get overview() { return this.cached(this.top, 0); }

  /* Tiles that cover a range: the right level where it is here, else the nearest coarser one, else finer ones. */
  cover(range, width) {
    const level = Tiles.level(range[1] - range[0], width);
    const span = BUCKETS * 2 ** level;
    const found = [];
    for (let at = Math.max(0, Math.floor(range[0] / span)); at * span <= Math.min(range[1], this.end); at += 1) {
      const clip = [at * span, (at + 1) * span];
      let lanes = this.cached(level, at);
      for (let up = 1; level + up <= this.top && !lanes; up += 1) lanes = this.cached(level + up, Math.floor(at / 2 ** up));
      if (lanes) found.push({ lanes, clip });
      else found.push(...this.finer(level, at, clip[0]));
    }
    return found;
  }

  finer(level, at, begin) {
    const found = [];
    for (let down = 1; down < 4 && !found.length; down += 1) {
      const size = BUCKETS * 2 ** (level - down);
      for (let child = 0; child < 2 ** down; child += 1) {
        const lanes = this.cached(level - down, at * 2 ** down + child);
        if (lanes) found.push({ lanes, clip: [begin + child * size, begin + (child + 1) * size] });
      }
    }
    return found;
  }
}

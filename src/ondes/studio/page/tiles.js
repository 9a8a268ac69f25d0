// Tiles of the spectrogram: fetched when they come into sight, and forgotten when there are many.

import { bytes } from "./api.js";

export const COLUMNS = 256;
export const ROWS = 160;
const BASE = 1 / 64; // seconds per column at level 0, as in tiles.py
const MIN_LEVEL = -3;
const MAX_LEVEL = 15;
const MAX_TILES = 160;
const AT_ONCE = 3;

export const secondsOf = (level) => COLUMNS * BASE * 2 ** level;

export const levelFor = (secondsPerPixel) =>
  Math.min(MAX_LEVEL, Math.max(MIN_LEVEL, Math.floor(Math.log2(secondsPerPixel / BASE) + 0.3)));

export class Tiles {
  #known = new Map(); // path -> bytes
  #waiting = new Map(); // path -> promise
  #queue = [];
  #n = 0;

  constructor(arrived) {
    this.arrived = arrived;
  }

  // The bytes of a tile, or null: then it is fetched, and `arrived` is called.
  get(path) {
    const known = this.#known.get(path);
    if (known) {
      this.#known.delete(path);
      this.#known.set(path, known);
      return known;
    }
    if (!this.#waiting.has(path)) {
      this.#waiting.set(path, true);
      this.#queue.push(path);
      this.#pump();
    }
    return null;
  }

  peek(path) {
    return this.#known.get(path) ?? null;
  }

  get isComplete() {
    return this.#waiting.size === 0;
  }

  // What has scrolled out of sight before it was fetched is not needed any more.
  forgetQueue() {
    for (const path of this.#queue.splice(0)) this.#waiting.delete(path);
  }

  async #pump() {
    if (this.#n >= AT_ONCE || !this.#queue.length) return;
    this.#n++;
    const path = this.#queue.pop();
    try {
      this.#known.set(path, new Uint8Array(await bytes(path)));
      while (this.#known.size > MAX_TILES) this.#known.delete(this.#known.keys().next().value);
      this.arrived();
    } catch {
      /* shown as dark; asked for again when the picture is drawn next */
    } finally {
      this.#waiting.delete(path);
      this.#n--;
      this.#pump();
    }
  }
}

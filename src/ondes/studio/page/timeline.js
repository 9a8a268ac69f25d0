// The picture of the recording: spectrogram, time, frequencies, selection and playhead.

import { byId, clock, el, hertz, moment } from "./dom.js";
import { lookup } from "./colours.js";
import { COLUMNS, ROWS, Tiles, levelFor, secondsOf } from "./tiles.js";

const SHORTEST_VIEW = 0.05; // seconds
const RANGE = 150; // half decibels from dark to bright
const DRAG = 4; // pixels before a press becomes a selection
const BOX = 10; // pixels across before it becomes a box
const NARROWEST = 100; // hertz

export class Timeline extends EventTarget {
  #places = [];
  #picture = { lowest: 40, highest: 22050 };
  #axis = { isLinear: false, low: null, high: null }; // null: as far as the picture goes
  #start = 0;
  #end = 1;
  #top = 200;
  #replacement = null;
  #overlay = null; // { model, components, colour }
  #isDrawing = false;
  #tiles = new Tiles(() => this.draw());
  #work = document.createElement("canvas");
  selection = null; // { start, end } in seconds, and { low, high } in hertz, or null for all
  marks = []; // { start, end, hue, name } of noise, voice and events
  position = 0;

  constructor() {
    super();
    this.view = byId("view");
    this.canvas = byId("spectrogram");
    this.lines = byId("marks");
    this.#work.width = COLUMNS;
    this.#work.height = ROWS;
    new ResizeObserver(() => this.draw()).observe(this.view);
    this.#listen();
  }

  get duration() {
    const last = this.#places.at(-1);
    return last ? last.offset + last.seconds : 0;
  }

  // Whether everything in sight has been drawn.
  get isComplete() {
    return !this.#isDrawing && this.#tiles.isComplete;
  }

  get range() {
    return { start: this.#start, end: this.#end };
  }

  load(places, picture) {
    const isNew = places.length !== this.#places.length || places[0]?.id !== this.#places[0]?.id;
    this.#places = places;
    this.#picture = picture;
    if (isNew) {
      this.#top = 0;
      this.show(0, this.duration);
    }
    this.view.setAttribute("aria-valuemax", this.duration.toFixed(2));
  }

  show(start, end) {
    const length = Math.min(Math.max(end - start, SHORTEST_VIEW), Math.max(this.duration, SHORTEST_VIEW));
    this.#start = Math.max(0, Math.min(start, this.duration - length));
    this.#end = this.#start + length;
    this.#tiles.forgetQueue();
    this.draw();
    this.dispatchEvent(new Event("range"));
  }

  zoom(factor, around = this.position) {
    const centre = around >= this.#start && around <= this.#end ? around : (this.#start + this.#end) / 2;
    this.show(centre - (centre - this.#start) * factor, centre + (this.#end - centre) * factor);
  }

  showSelection() {
    if (this.selection) {
      const { start, end, low, high } = this.selection;
      const margin = 0.05 * (end - start);
      if (low !== null) this.axis = { ...this.#axis, low: low * 0.9, high: high * 1.1 };
      this.show(start - margin, end + margin);
    }
  }

  showAll() {
    this.axis = { ...this.#axis, low: null, high: null };
    this.show(0, this.duration);
  }

  // ---- frequencies: which are shown, and whether evenly spaced ----

  get axis() {
    return this.#axis;
  }

  set axis({ isLinear, low, high }) {
    const { lowest, highest } = this.#picture;
    const bottom = isLinear ? 0 : lowest;
    low = Math.max(bottom, low ?? bottom);
    high = Math.min(highest, high ?? highest);
    if (high - low < NARROWEST) low = Math.max(bottom, high - NARROWEST);
    const isAll = low <= bottom && high >= highest;
    this.#axis = { isLinear, low: isAll ? null : low, high: isAll ? null : high };
    this.#tiles.forgetQueue();
    this.draw();
    this.dispatchEvent(new Event("axis"));
  }

  get #band() {
    const { lowest, highest } = this.#picture;
    const { isLinear, low, high } = this.#axis;
    return { isLinear, low: low ?? (isLinear ? 0 : lowest), high: high ?? highest };
  }

  // From 0 at the bottom to 1 at the top.
  heightOf(hz) {
    const { isLinear, low, high } = this.#band;
    return isLinear ? (hz - low) / (high - low) : Math.log(Math.max(hz, 1) / low) / Math.log(high / low);
  }

  hertzAt(clientY) {
    const { isLinear, low, high } = this.#band;
    const { top, height } = this.view.getBoundingClientRect();
    const t = Math.min(1, Math.max(0, 1 - (clientY - top) / height));
    return isLinear ? low + t * (high - low) : low * (high / low) ** t;
  }

  zoomFrequency(factor, clientY = null) {
    const { top, height } = this.view.getBoundingClientRect();
    const { isLinear, low, high } = this.#band;
    const middle = this.hertzAt(clientY ?? top + height / 2);
    const to = (hz) => (isLinear ? middle + (hz - middle) * factor : middle * (hz / middle) ** factor);
    this.axis = { isLinear, low: to(low), high: to(high) };
  }

  // Shows parts of a model instead of the recording: { model, parts: [{ part, lower }] }, in decibels.
  replace(replacement) {
    if (!replacement?.parts) replacement = null;
    if (JSON.stringify(replacement) === JSON.stringify(this.#replacement)) return;
    this.#replacement = replacement;
    this.draw();
  }

  // Shows what some components take of the picture, in a colour; null shows all again.
  share(overlay) {
    this.#overlay = overlay;
    this.draw();
  }

  select(start, end, low = null, high = null) {
    const [a, b] = [Math.min(start, end), Math.max(start, end)];
    const clipped = { start: Math.max(0, a), end: Math.min(b, this.duration), low, high };
    if (low !== null && low > high) [clipped.low, clipped.high] = [high, low];
    this.selection = clipped.end - clipped.start > 1e-3 ? clipped : null;
    this.drawLines();
    this.dispatchEvent(new Event("selection"));
  }

  // While it plays, the picture follows.
  follow(position, isPlaying) {
    this.position = position;
    const length = this.#end - this.#start;
    if (isPlaying && length < this.duration && (position < this.#start || position > this.#end))
      this.show(position - 0.1 * length, position + 0.9 * length);
    this.drawLines();
    this.view.setAttribute("aria-valuenow", position.toFixed(2));
    const { text, name } = moment(this.#places, position);
    this.view.setAttribute("aria-valuetext", `${text} in ${name}, ${clock(position)} of ${clock(this.duration)}`);
  }

  draw() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#drawPicture();
      this.drawLines();
      this.#drawAxes();
    });
  }

  #resize(canvas) {
    const { clientWidth, clientHeight } = this.view;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const [width, height] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    return canvas.getContext("2d");
  }

  #drawPicture() {
    if (!this.view.clientWidth || !this.#places.length) return;
    const context = this.#resize(this.canvas);
    context.globalAlpha = 1;
    context.fillStyle = "#04040e";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const top = this.#top || 200;
    if (this.#replacement) {
      context.globalCompositeOperation = "lighten";
      const { model, parts } = this.#replacement;
      for (const { part, lower } of parts) this.#drawTiles(context, `/${model}/${part}`, lookup(top + 2 * lower, RANGE));
      context.globalCompositeOperation = "source-over";
    } else this.#drawTiles(context, "", lookup(top, RANGE));
    if (!this.#overlay) return;
    context.fillStyle = "rgba(4, 4, 14, 0.72)";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const { model, components, colour } = this.#overlay;
    const table = lookup(this.#top || 200, RANGE, colour);
    for (const component of components) this.#drawTiles(context, `/${model}/${component}`, table);
  }

  #drawTiles(context, part, table) {
    const level = this.#level(part);
    for (const place of this.#places) {
      const from = Math.max(0, this.#start - place.offset);
      const to = Math.min(place.seconds, this.#end - place.offset);
      if (to <= from) continue;
      const span = secondsOf(level);
      for (let index = Math.floor(from / span); index * span < to; index++)
        this.#drawTile(context, place, level, index, part, table);
    }
  }

  // Shares take longer to compute, and are shown at half the resolution.
  #level(part) {
    return levelFor(((part ? 2 : 1) * (this.#end - this.#start)) / Math.max(this.canvas.width, 1));
  }

  #drawTile(context, place, level, index, part, table) {
    const { isLinear, low, high } = this.#band;
    const axis = isLinear || this.#axis.low !== null
      ? `?axis=${isLinear ? "linear" : "log"}&low=${low.toFixed(1)}&high=${high.toFixed(1)}` : "";
    const path = (l, i) => `tile/${place.id}/${l}/${i}${part}${axis}`;
    const span = secondsOf(level);
    const data = this.#tiles.get(path(level, index));
    if (data) {
      if (!part) this.#adjust(data);
      this.#paint(context, data, table, 0, COLUMNS, place.offset + index * span, span, place);
      return;
    }
    // Meanwhile a coarser picture of the same part, if there is one, or finer ones.
    for (let up = 1; up <= 6; up++) {
      const coarse = this.#tiles.peek(path(level + up, index >> up));
      if (!coarse) continue;
      const n = COLUMNS / 2 ** up;
      const first = (index - ((index >> up) << up)) * n;
      this.#paint(context, coarse, table, first, n, place.offset + index * span, span, place);
      return;
    }
    for (let down = 1; down <= 2; down++)
      for (let i = index << down; i < (index + 1) << down; i++) {
        const fine = this.#tiles.peek(path(level - down, i));
        const own = span / 2 ** down;
        if (fine) this.#paint(context, fine, table, 0, COLUMNS, place.offset + i * own, own, place);
      }
  }

  // The first look at what a sound takes would have to wait for the computation.
  prepare(model) {
    const level = this.#level(`/${model}/0`);
    for (const { id, seconds } of this.#places.slice(0, 3))
      for (let index = 0; index < Math.min(4, seconds / secondsOf(level)); index++)
        this.#tiles.get(`tile/${id}/${level}/${index}/${model}/0`);
  }

  // The loudest that was seen is the brightest.
  #adjust(data) {
    let loudest = 0;
    for (const byte of data) if (byte > loudest) loudest = byte;
    if (loudest > this.#top) {
      const isFirst = this.#top === 0;
      this.#top = loudest;
      if (!isFirst) this.draw();
    }
  }

  #paint(context, data, table, first, n, start, seconds, place) {
    const image = new ImageData(COLUMNS, ROWS);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < ROWS; row++) {
      const from = (ROWS - 1 - row) * COLUMNS; // the lowest frequency is the first row
      for (let column = 0; column < COLUMNS; column++)
        pixels[row * COLUMNS + column] = table[data[from + column]];
    }
    this.#work.getContext("2d").putImageData(image, 0, 0);
    const scale = this.canvas.width / (this.#end - this.#start);
    const x = (start - this.#start) * scale;
    // Nothing is drawn beyond the end of a recording.
    const shown = Math.min(1, (place.offset + place.seconds - start) / seconds);
    context.drawImage(
      this.#work, first, 0, n * shown, ROWS, x, 0, seconds * shown * scale, this.canvas.height);
  }

  drawLines() {
    if (!this.view.clientWidth) return;
    const context = this.#resize(this.lines);
    const { width, height } = this.lines;
    context.clearRect(0, 0, width, height);
    const x = (seconds) => ((seconds - this.#start) / (this.#end - this.#start)) * width;
    if (this.#places.length > 1) for (const { offset, seconds, name } of this.#places) {
      const from = Math.max(0, x(offset));
      const width = x(offset + seconds) - from;
      context.fillStyle = "#ffffff66";
      context.fillRect(x(offset), 0, 1, height);
      if (width < 60) continue;
      context.save();
      context.beginPath();
      context.rect(from, 0, width - 4, height);
      context.clip();
      context.font = `${height / 20}px system-ui, sans-serif`;
      context.fillStyle = "#000000b0";
      context.fillRect(from + 2, height * 0.92, context.measureText(name).width + 10, height * 0.07);
      context.fillStyle = "#ffffff";
      context.fillText(name, from + 7, height * 0.975);
      context.restore();
    }
    for (const { start, end, colour, name } of this.marks) {
      context.fillStyle = `rgb(${colour.join(" ")} / 0.28)`;
      context.fillRect(x(start), 0, Math.max(1, x(end) - x(start)), height);
      context.fillStyle = `rgb(${colour.join(" ")})`;
      context.fillRect(x(start), 0, Math.max(1, x(end) - x(start)), 3);
      if (name && x(end) - x(start) > 40) {
        context.font = `${height / 18}px system-ui, sans-serif`;
        context.fillStyle = "#000000b0";
        context.fillRect(x(start), 3, context.measureText(name).width + 10, height / 11);
        context.fillStyle = "#ffffff";
        context.fillText(name, x(start) + 5, height / 14 + 3);
      }
    }
    if (this.selection) {
      const [from, to] = [x(this.selection.start), x(this.selection.end)];
      const { low, high } = this.selection;
      const top = low === null ? 0 : height * (1 - this.heightOf(high));
      const tall = low === null ? height : height * (1 - this.heightOf(low)) - top;
      context.fillStyle = "rgba(255, 255, 255, 0.2)";
      context.fillRect(from, top, to - from, tall);
      context.strokeStyle = "#ffffff";
      context.lineWidth = 1.5;
      context.strokeRect(from, top - (low === null ? 2 : 0), to - from, tall + (low === null ? 4 : 0));
    }
    context.fillStyle = "#000000aa";
    context.fillRect(x(this.position) - 2, 0, 4, height);
    context.fillStyle = "#ffffff";
    context.fillRect(x(this.position) - 1, 0, 2, height);
  }

  #drawAxes() {
    byId("hertz").replaceChildren(
      ...this.#hertzMarks().map((value) => {
        const mark = el("span", {}, hertz(value).replace(".0 ", " "));
        mark.style.bottom = `${100 * this.heightOf(value)}%`;
        return mark;
      }));
    const length = this.#end - this.#start;
    const wanted = (length * 90) / Math.max(this.view.clientWidth, 1);
    const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200];
    const step = steps.find((each) => each >= wanted) ?? 14400;
    const ticks = [];
    for (let n = Math.ceil(this.#start / step - 1e-9); n * step <= this.#end + 1e-9; n++) {
      const position = (n * step - this.#start) / length;
      if (position > 0.985) continue;
      const tick = el("span", {}, moment(this.#places, n * step, step < 0.1 ? 2 : step < 1 ? 1 : 0).text);
      tick.style.left = `${100 * position}%`;
      if (position < 0.03) tick.style.transform = "none"; // else it would be cut off
      ticks.push(tick);
    }
    byId("ruler").replaceChildren(...ticks);
  }

  #hertzMarks() {
    const { isLinear, low, high } = this.#band;
    const isWithin = (value) => this.heightOf(value) > 0.02 && this.heightOf(value) < 0.97;
    const octaves = [50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000].filter(isWithin);
    if (!isLinear && octaves.length > 2) return octaves;
    const step = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000].find((each) => (high - low) / each <= 8) ?? 50000;
    const first = Math.ceil(low / step);
    return Array.from({ length: 12 }, (_, n) => (first + n) * step).filter(isWithin);
  }

  timeAt(clientX) {
    const { left, width } = this.view.getBoundingClientRect();
    const t = Math.min(1, Math.max(0, (clientX - left) / width));
    return this.#start + t * (this.#end - this.#start);
  }

  #listen() {
    let pressedAt = null;
    this.view.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const { clientX, clientY } = event;
      pressedAt = { x: clientX, y: clientY, time: this.timeAt(clientX), hertz: this.hertzAt(clientY) };
      if (event.shiftKey && this.selection) {
        const { start, end } = this.selection;
        const isNearStart = Math.abs(pressedAt.time - start) < Math.abs(pressedAt.time - end);
        pressedAt = { ...pressedAt, x: -1e9, time: isNearStart ? end : start };
        this.select(pressedAt.time, this.timeAt(event.clientX));
      }
      this.view.setPointerCapture(event.pointerId);
    });
    this.view.addEventListener("pointermove", (event) => {
      if (!pressedAt || Math.abs(event.clientX - pressedAt.x) <= DRAG) return;
      // A drag along the time selects all frequencies, one across the picture a box.
      const isBox = Math.abs(event.clientY - pressedAt.y) > BOX;
      this.select(pressedAt.time, this.timeAt(event.clientX),
        ...(isBox ? [pressedAt.hertz, this.hertzAt(event.clientY)] : []));
    });
    this.view.addEventListener("pointerup", (event) => {
      if (pressedAt && Math.abs(event.clientX - pressedAt.x) <= DRAG) this.#seek(pressedAt.time);
      pressedAt = null;
    });
    this.view.addEventListener("pointercancel", () => (pressedAt = null));
    this.view.addEventListener("dblclick", () => this.select(0, 0));
    this.view.addEventListener("wheel", (event) => {
      const length = this.#end - this.#start;
      if (event.altKey) {
        event.preventDefault();
        this.zoomFrequency(event.deltaY > 0 ? 1.5 : 1 / 1.5, event.clientY);
      } else if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(Math.exp(event.deltaY / 300), this.timeAt(event.clientX));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        const shift = ((event.deltaX || event.deltaY) / this.view.clientWidth) * length;
        this.show(this.#start + shift, this.#end + shift);
      }
    }, { passive: false });
    this.view.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const step = (this.#end - this.#start) / 50;
    const moves = { ArrowLeft: -step, ArrowRight: step, PageUp: -10 * step, PageDown: 10 * step,
      Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const target = Math.min(Math.max(this.position + moves[event.key], 0), this.duration);
    if (event.shiftKey) {
      const { start, end } = this.selection ?? { start: this.position, end: this.position };
      const fixed = Math.abs(this.position - start) < 1e-6 ? end : start;
      this.select(fixed, target, this.selection?.low ?? null, this.selection?.high ?? null);
    }
    this.#seek(target);
  }

  #seek(time) {
    this.dispatchEvent(new CustomEvent("seek", { detail: time }));
  }
}

// Hours of recordings: how loud each sound is over time, events, odd moments, and new sounds.

import { bytes, post } from "./api.js";
import { byId, clock, decibels, el, setBusy } from "./dom.js";
import { lookup, rgbOf } from "./colours.js";
import { finder } from "./finder.js";
import { spanOf } from "./speech.js";
import { act, complain, places, store } from "./store.js";

const LOWEST_DB = -120; // bytes are half decibels above it, as in field.py
const RANGE = 120; // half decibels from dark to bright
const N_ODD = 8;
const ROW = 14; // pixels

export class Field {
  #panel = byId("panel-field");
  #drawn = "";
  #model = null;
  #heard = new Map(); // recording -> { every, n, k, oddness, levels }
  #rows = []; // { name, components, colour }
  #chosen = null; // name of the row whose events are shown
  #learned = null; // a sound that is being learned: its row is chosen when it is there
  #settings = { threshold: -45, length: 0, gap: 0.5 };
  marks = [];

  constructor(timeline, player) {
    this.timeline = timeline;
    this.player = player;
    timeline.addEventListener("range", () => this.#draw());
    timeline.addEventListener("selection", () => this.#enable());
    new ResizeObserver(() => this.#draw()).observe(this.#panel);
    this.#panel.addEventListener("click", ({ target, clientX }) => {
      if (target.matches("canvas")) this.player.seek(this.timeline.timeAt(clientX));
    });
  }

  show(state, isShown) {
    if (!isShown) return;
    const { project, components } = state;
    const signature = JSON.stringify([components?.model, project.groups, state.recordings.length]);
    if (signature === this.#drawn) return this.#enable();
    this.#drawn = signature;
    this.#rows = rowsOf(state, this.#isEvery);
    if (this.#learned && this.#rows.some(({ name }) => name === this.#learned)) this.#chooseLearned();
    if (!this.#rows.some(({ name }) => name === this.#chosen)) this.#chosen = this.#rows[0]?.name ?? null;
    const focused = document.activeElement?.id;
    this.#panel.replaceChildren(...(state.recordings.length ? this.#content(components) : []));
    this.#enable();
    if (focused) byId(focused)?.focus();
    if (components) this.#load(components);
  }

  #content(components) {
    if (!components) {
      return [
        el("p", {}, "First the studio reads everything once, and finds the sounds in it."),
        finder("field", "Find the sounds"),
      ];
    }
    return [
      el("div", { class: "line" }, el("h2", {}, "What sounds when"),
        el("p", { class: "quiet grow" }, "Bright is loud. Click to go there; zoom with + and −."),
        el("label", {}, this.#everySound(), " every sound by itself")),
      el("div", { class: "beside" },
        el("div", { class: "rows", "aria-hidden": "true", id: "heat-names" }),
        el("div", { class: "map" }, el("canvas", { id: "heat-map", role: "img", "aria-label": "Level of each group over time" }))),
      el("div", { id: "odd" },
        el("h3", {}, "Odd moments"),
        el("p", { class: "quiet" }, "Where the sounds that were found explain the recording worst."),
        el("div", { class: "beside" }, el("span"), el("canvas", { id: "odd-curve", role: "img", "aria-label": "Oddness over time" })),
        el("div", { class: "line", id: "odd-moments", role: "group", "aria-label": "The oddest moments" })),
      el("div", { class: "columns" }, this.#events(), this.#learner(), this.#tables()),
    ];
  }

  #everySound() {
    const box = el("input", { type: "checkbox", id: "every-sound", checked: this.#isEvery });
    box.addEventListener("change", () => {
      this.#isEvery = box.checked;
      this.#drawn = "";
      this.show(store.state, true);
    });
    return box;
  }

  #events() {
    const { threshold, length, gap } = this.#settings;
    const row = el("select", { id: "event-row" }, ...this.#rows.map(({ name }) => el("option", { value: name }, name)));
    row.value = this.#chosen;
    const slider = el("input", { type: "range", id: "threshold", min: -110, max: 0, step: 1, value: threshold });
    const shown = el("output", { for: "threshold" }, decibels(threshold));
    const shortest = el("input", { type: "number", id: "shortest", min: 0, step: 0.1, value: length });
    const pause = el("input", { type: "number", id: "pause", min: 0, step: 0.1, value: gap });
    const change = () => {
      this.#chosen = row.value;
      this.#settings = { threshold: Number(slider.value), length: Number(shortest.value), gap: Number(pause.value) };
      shown.textContent = decibels(this.#settings.threshold);
      this.#find();
    };
    for (const input of [row, slider, shortest, pause]) input.addEventListener("input", change);
    return el("section", { class: "card-like", "aria-label": "Events" },
      el("h3", {}, "Events"),
      el("label", {}, "Of ", row),
      el("label", {}, "Louder than ", slider, " ", shown),
      el("label", {}, "At least ", shortest, " s long"),
      el("label", {}, "Pauses under ", pause, " s do not count"),
      el("p", { id: "n-events", role: "status" }),
      el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ...["", "When", "Length", "Level"].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", { id: "events" }))));
  }

  #learner() {
    const name = el("input", { class: "name boxed", id: "sound-name", maxlength: 80, placeholder: "frog", "aria-label": "Name of the sound" });
    const learn = async () => {
      const span = spanOf(this.timeline.selection);
      if (!span) return;
      this.#learned = name.value.trim();
      if (!(await act("learn sound", { ...span, name: name.value }))) this.#learned = null;
    };
    return el("section", { class: "card-like", "aria-label": "Learn a sound" },
      el("h3", {}, "Learn this sound"),
      el("p", { class: "quiet" }, "Drag over one call in the picture and name it. Then similar moments become events."),
      el("label", {}, "Name ", name),
      el("button", { type: "button", id: "learn-sound", data: { waits: "", selects: "" }, onclick: learn }, "Learn this sound, find more"));
  }

  #tables() {
    const every = el("input", { type: "number", id: "every", min: 0.05, max: 3600, step: 0.05, value: this.#table.every, oninput: () => (this.#table.every = every.value) });
    const format = el("select", { id: "table-format" },
      el("option", { value: "csv" }, "CSV"), el("option", { value: "parquet" }, "Parquet"), el("option", { value: "npz" }, "NumPy"));
    format.value = this.#table.format;
    format.addEventListener("change", () => (this.#table.format = format.value));
    const start = (what) => act("export", { what, format: format.value, every: Number(every.value), ...this.#rule() });
    const button = (id, text) => el("button", { type: "button", id, data: { waits: "" }, onclick: () => start(id.slice(6)) }, text);
    return el("section", { class: "card-like", "aria-label": "Export tables" },
      el("h3", {}, "Tables"),
      el("label", {}, "One row per ", every, " s"),
      el("label", {}, "Format ", format),
      el("div", { class: "line" }, button("table-levels", "Levels"), button("table-events", "Events"), button("table-labels", "Audacity labels")));
  }

  #rule() {
    const row = this.#rows.find(({ name }) => name === this.#chosen);
    return { name: this.#chosen, components: row?.components ?? [], ...this.#settings };
  }

  // A new sound's events: a little below how loud it was where it was learned.
  #chooseLearned() {
    this.#chosen = this.#learned;
    this.#learned = null;
    this.#isNew = true;
  }
  #isNew = false;
  #table = { every: 1, format: "csv" };
  #isEvery = false; // whether sounds have rows of their own, beside their groups

  // ---- data ----

  async #load({ model, items, heard }) {
    if (this.#model !== model) {
      this.#model = model;
      this.#heard = new Map();
    }
    const k = items.length;
    try {
      for (const [recording, { every, steps }] of Object.entries(heard)) {
        if (this.#heard.has(recording)) continue;
        const data = await bytes(`levels/${recording}/${model}`);
        if (this.#model !== model) return;
        const oddness = new Float32Array(data, 0, steps);
        this.#heard.set(recording, { every, n: steps, k, oddness, levels: new Uint8Array(data, 4 * steps) });
      }
    } catch (error) {
      complain(error);
    }
    if (this.#isNew) this.#setThreshold();
    this.#draw();
    this.#showOddMoments();
    this.#find();
  }

  #setThreshold() {
    this.#isNew = false;
    const row = this.#rows.find(({ name }) => name === this.#chosen);
    const span = spanOf(this.timeline.selection);
    const heard = span && this.#heard.get(span.recording);
    if (!row || !heard) return;
    let loudest = 0;
    for (let step = Math.floor(span.start / heard.every); step < Math.min(heard.n, span.end / heard.every); step++)
      loudest = Math.max(loudest, byteOf(heard, row.components, step));
    this.#settings.threshold = Math.max(-110, Math.round(LOWEST_DB + loudest / 2 - 8));
    const slider = byId("threshold");
    if (slider) slider.value = this.#settings.threshold;
    const choice = byId("event-row");
    if (choice) choice.value = this.#chosen;
    slider?.nextElementSibling?.replaceChildren(decibels(this.#settings.threshold));
  }

  #asked = 0;
  async #find() {
    const asked = ++this.#asked;
    const rule = this.#rule();
    if (!rule.components.length || !byId("events")) return;
    try {
      const { n, events } = await post("events", rule);
      if (asked !== this.#asked) return;
      const all = new Map(places().map((place) => [place.id, place]));
      const row = this.#rows.find(({ name }) => name === this.#chosen);
      const shown = events.filter(({ recording }) => all.has(recording));
      this.marks = shown.map(({ recording, start, end }) => {
        const { offset } = all.get(recording);
        return { start: offset + start, end: offset + end, colour: row.colour };
      });
      this.timeline.marks = this.marks;
      this.timeline.drawLines();
      byId("n-events").textContent = `${n} event${n === 1 ? "" : "s"} of ${rule.name}`;
      byId("events").replaceChildren(...shown.slice(0, 300).map((event, i) => this.#event(event, this.marks[i])));
    } catch (error) {
      complain(error);
    }
  }

  #event({ clock: time, level, start, end }, mark) {
    const when = time ? time.replace("T", " ").slice(0, 19) : clock(mark.start, 1);
    return el("tr", {},
      el("td", {}, el("button", { type: "button", class: "round", "aria-label": `Hear the event at ${when}`,
        onclick: () => this.#hear(mark.start, mark.end) }, "▶")),
      el("td", {}, when), el("td", {}, `${(end - start).toFixed(1)} s`), el("td", {}, decibels(level, 1)));
  }

  #hear(start, end) {
    const { start: from, end: to } = this.timeline.range;
    if (start < from || end > to || end - start < (to - from) / 200) {
      const margin = Math.max(5, 2 * (end - start));
      this.timeline.show(start - margin, end + margin);
    }
    this.player.seek(Math.max(0, start - 0.2));
    if (!this.player.isPlaying) this.player.play();
  }

  #showOddMoments() {
    const moments = [];
    for (const { id, offset } of places()) {
      const heard = this.#heard.get(id);
      if (!heard) continue;
      for (let step = 0; step < heard.n; step++)
        moments.push({ time: offset + step * heard.every, odd: heard.oddness[step], every: heard.every });
    }
    moments.sort((a, b) => b.odd - a.odd);
    const chosen = [];
    for (const moment of moments) {
      if (chosen.length === N_ODD || !(moment.odd > 0)) break;
      if (chosen.every(({ time }) => Math.abs(time - moment.time) > 2)) chosen.push(moment);
    }
    byId("odd-moments")?.replaceChildren(...chosen.map(({ time, odd, every }) =>
      el("button", { type: "button", onclick: () => this.#hear(time, time + every), title: "Hear it" },
        `${clock(time, 1)} · ${odd.toFixed(1)}`)));
  }

  // ---- drawing ----

  #draw() {
    const map = byId("heat-map");
    if (!map?.clientWidth || !this.#heard.size) return;
    const width = Math.round(map.clientWidth * Math.min(2, window.devicePixelRatio || 1));
    const columns = this.#columns(width);
    this.#drawMap(map, width, columns);
    this.#drawCurve(byId("odd-curve"), width, columns);
    byId("heat-names").replaceChildren(...this.#rows.map(({ name }, n) => {
      const label = el("span", { title: name }, name);
      label.style.top = `${n * ROW}px`;
      return label;
    }));
  }

  // For every pixel: which recording, and which steps of it.
  #columns(width) {
    const { start, end } = this.timeline.range;
    const all = places().filter(({ id }) => this.#heard.has(id));
    return Array.from({ length: width }, (_, x) => {
      const time = start + ((x + 0.5) / width) * (end - start);
      const place = all.find(({ offset, seconds }) => time >= offset && time < offset + seconds);
      if (!place) return null;
      const heard = this.#heard.get(place.id);
      const half = (end - start) / width / 2 / heard.every;
      const at = (time - place.offset) / heard.every;
      const first = Math.max(0, Math.floor(at - half));
      return { heard, first, last: Math.min(heard.n - 1, Math.max(first, Math.ceil(at + half) - 1)) };
    });
  }

  #drawMap(map, width, columns) {
    const height = this.#rows.length;
    const loudness = new Uint8Array(width * height);
    let top = 0;
    columns.forEach((column, x) => {
      if (!column) return;
      const { heard, first, last } = column;
      this.#rows.forEach(({ components }, y) => {
        let loudest = 0;
        for (let step = first; step <= last; step++) loudest = Math.max(loudest, byteOf(heard, components, step));
        loudness[y * width + x] = loudest;
        if (loudest > top) top = loudest;
      });
    });
    const table = lookup(top, RANGE);
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    loudness.forEach((byte, i) => (pixels[i] = table[byte]));
    map.width = width;
    map.height = height;
    map.style.height = `${height * ROW}px`;
    map.getContext("2d").putImageData(image, 0, 0);
  }

  #drawCurve(canvas, width, columns) {
    const height = 60;
    canvas.width = width;
    canvas.height = height;
    const values = columns.map((column) => {
      if (!column) return 0;
      let largest = 0;
      for (let step = column.first; step <= column.last; step++) largest = Math.max(largest, column.heard.oddness[step]);
      return largest;
    });
    const top = Math.max(...values) || 1;
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    values.forEach((value, x) => context.fillRect(x, height * (1 - value / top), 1, height));
  }

  #enable() {
    const isBusy = store.state.job?.state === "running";
    setBusy(this.#panel, isBusy);
    for (const button of this.#panel.querySelectorAll("[data-selects]")) {
      button.disabled = isBusy || !this.timeline.selection;
      button.title = this.timeline.selection ? "" : "Drag over the picture first";
    }
  }
}

// The level of some components together, as a byte: the loudest decides all but 3 dB.
function byteOf({ levels, k }, components, step) {
  if (components.length === 1) return levels[step * k + components[0]];
  let power = 0;
  for (const component of components) power += 10 ** (levels[step * k + component] / 20);
  return Math.min(255, 20 * Math.log10(power));
}

function rowsOf({ project, components }, isEvery) {
  if (!components) return [];
  const groups = project.groups.filter((group) => group.components.length)
    .map(({ id, name, components: own }) => ({ name, components: own, colour: rgbOf(id) }));
  const grouped = new Set(groups.flatMap(({ components: own }) => own));
  const single = components.items.filter(({ index }) => isEvery || !grouped.has(index))
    .map(({ index }) => ({ name: `Sound ${index + 1}`, components: [index], colour: rgbOf(null) }));
  return [...groups, ...single];
}

// Hours of recordings: how loud each sound is over time, events, novel moments, and new sounds.

import { bytes, post } from "./api.js";
import { byId, decibels, el, moment, setBusy } from "./dom.js";
import { lookup, rgbOf } from "./colours.js";
import { finder } from "./finder.js";
import { bandOf, spanOf } from "./speech.js";
import { act, complain, places, store } from "./store.js";

const LOWEST_DB = -120; // bytes are half decibels above it, as in field.py
const RANGE = 120; // half decibels from dark to bright
const N_NOVEL = 8;
const ROW = 14; // pixels
const AROUND = 5; // seconds before and after a sound, which are not that sound

export class Field {
  #panel = byId("panel-field");
  #drawn = "";
  #model = null;
  #levels = new Map(); // recording -> { every, n, k, novelty, levels }
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
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
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
      el("div", { id: "novelty" },
        el("h3", {}, "Novel moments"),
        el("p", { class: "quiet" }, "Where the sounds that were found explain the recording worst: the time, and how badly."),
        el("div", { class: "beside" }, el("span"), el("canvas", { id: "novelty-curve", role: "img", "aria-label": "Novelty over time" })),
        el("div", { class: "line", id: "novel-moments", role: "group", "aria-label": "The most novel moments" })),
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
      el("p", { id: "event-band", class: "quiet" }),
      el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ...["", "When", "Length", "Level"].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", { id: "events" }))));
  }

  #learner() {
    const name = el("input", { class: "name boxed", id: "sound-name", maxlength: 80, placeholder: "frog", "aria-label": "Name of the sound" });
    const learn = async () => {
      const span = spanOf(this.timeline.selection);
      if (!span) return;
      const [low, high] = bandOf(this.timeline.selection);
      this.#learned = name.value.trim();
      if (!(await act("learn sound", { ...span, low, high, name: name.value }))) this.#learned = null;
    };
    return el("section", { class: "card-like", "aria-label": "Learn a sound" },
      el("h3", {}, "Learn this sound"),
      el("p", { class: "quiet" }, "Drag a box over one call in the picture, as narrow in time and frequency as it is, and name it. The seconds around it are learned as what it is not. Then similar moments become events."),
      el("label", {}, "Name ", name),
      el("button", { type: "button", id: "learn-sound", data: { waits: "", selects: "" }, onclick: learn }, "Learn this sound, find more"));
  }

  #tables() {
    const every = el("input", { type: "number", id: "every", min: 0.05, max: 3600, step: 0.05, value: this.#table.every, oninput: () => (this.#table.every = every.value) });
    const format = el("select", { id: "table-format" },
      el("option", { value: "csv" }, "CSV"), el("option", { value: "parquet" }, "Parquet"), el("option", { value: "npz" }, "NumPy"),
      el("option", { value: "raven" }, "Raven (events)"), el("option", { value: "kaleidoscope" }, "Kaleidoscope (events)"));
    format.value = this.#table.format;
    format.addEventListener("change", () => (this.#table.format = format.value));
    const start = (what) => act("export", { what, format: format.value, every: Number(every.value),
      rows: this.#rows.map(({ name, components }) => [name, components]), ...this.#rule() });
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

  // A new sound's events: between how loud it was where it was learned, and the moments around.
  #chooseLearned() {
    this.#chosen = this.#learned;
    this.#learned = null;
    this.#isNew = true;
  }
  #isNew = false;
  #table = { every: 1, format: "csv" };
  #isEvery = false; // whether sounds have rows of their own, beside their groups

  // ---- data ----

  async #load({ model, items, levels: all }) {
    if (this.#model !== model) {
      this.#model = model;
      this.#levels = new Map();
    }
    const k = items.length;
    try {
      for (const [recording, { every, steps }] of Object.entries(all)) {
        if (this.#levels.has(recording)) continue;
        const data = await bytes(`levels/${recording}/${model}`);
        if (this.#model !== model) return;
        const novelty = new Float32Array(data, 0, steps);
        this.#levels.set(recording, { every, n: steps, k, novelty, levels: new Uint8Array(data, 4 * steps) });
      }
    } catch (error) {
      complain(error);
    }
    if (this.#isNew) this.#setThreshold();
    this.#draw();
    this.#showNovelMoments();
    this.#find();
  }

  #setThreshold() {
    this.#isNew = false;
    const row = this.#rows.find(({ name }) => name === this.#chosen);
    const span = spanOf(this.timeline.selection);
    const own = span && this.#levels.get(span.recording);
    if (!row || !own) return;
    const [first, last] = [Math.floor(span.start / own.every), Math.ceil(span.end / own.every)];
    const around = Math.round(AROUND / own.every);
    const level = (from, to) => Array.from({ length: Math.max(0, Math.min(to, own.n) - Math.max(from, 0)) },
      (_, n) => byteOf(own, row.components, Math.max(from, 0) + n));
    const inside = Math.max(0, ...level(first, last + 1));
    const outside = [...level(first - around, first - 2), ...level(last + 3, last + around)].sort((a, b) => a - b);
    // Not of the loudest moments around: other calls may be among them.
    const usual = outside[Math.floor(0.75 * outside.length)] ?? 0;
    const between = Math.max(inside - 16, 0.7 * inside + 0.3 * usual);
    this.#settings.threshold = Math.max(-110, Math.round(LOWEST_DB + between / 2));
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
      const { n, events, low, high } = await post("events", rule);
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
      byId("event-band").textContent = `Between ${low} and ${high} Hz`;
      byId("events").replaceChildren(...shown.slice(0, 300).flatMap((event, i) => {
        const isNext = all.size > 1 && event.recording !== shown[i - 1]?.recording;
        const name = isNext && el("tr", {}, el("th", { scope: "rowgroup", colspan: 4 }, all.get(event.recording).name));
        return [name, this.#event(event, this.marks[i])].filter(Boolean);
      }));
    } catch (error) {
      complain(error);
    }
  }

  #event({ clock: time, level, start, end }, mark) {
    const { text } = moment(places(), mark.start, 1);
    const when = time ? `${time.slice(0, 10)} ${text}` : text;
    return el("tr", {},
      el("td", {}, el("button", { type: "button", class: "round", "aria-label": `Hear the event at ${when}`,
        onclick: () => this.#hear(mark.start, mark.end) }, "▶")),
      el("td", {}, when), el("td", {}, `${(end - start).toFixed(2)} s`), el("td", {}, decibels(level, 2)));
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

  #showNovelMoments() {
    const moments = [];
    for (const { id, offset } of places()) {
      const own = this.#levels.get(id);
      if (!own) continue;
      for (let step = 0; step < own.n; step++)
        moments.push({ time: offset + step * own.every, novelty: own.novelty[step], every: own.every });
    }
    moments.sort((a, b) => b.novelty - a.novelty);
    const chosen = [];
    for (const moment of moments) {
      if (chosen.length === N_NOVEL || !(moment.novelty > 0)) break;
      if (chosen.every(({ time }) => Math.abs(time - moment.time) > 2)) chosen.push(moment);
    }
    const isOfSeveral = places().length > 1;
    byId("novel-moments")?.replaceChildren(...chosen.map(({ time, novelty, every }) => {
      const { text, name } = moment(places(), time, 1);
      return el("button", { type: "button", onclick: () => this.#hear(time, time + every), title: "Hear it" },
        `${text} · ${novelty.toFixed(1)}`, isOfSeveral && el("small", {}, name));
    }));
  }

  // ---- drawing ----

  #draw() {
    const map = byId("heat-map");
    if (!map?.clientWidth || !this.#levels.size) return;
    const width = Math.round(map.clientWidth * Math.min(2, window.devicePixelRatio || 1));
    const columns = this.#columns(width);
    this.#drawMap(map, width, columns);
    this.#drawCurve(byId("novelty-curve"), width, columns);
    byId("heat-names").replaceChildren(...this.#rows.map(({ name }, n) => {
      const label = el("span", { title: name }, name);
      label.style.top = `${n * ROW}px`;
      return label;
    }));
  }

  // For every pixel: which recording, and which steps of it.
  #columns(width) {
    const { start, end } = this.timeline.range;
    const all = places().filter(({ id }) => this.#levels.has(id));
    return Array.from({ length: width }, (_, x) => {
      const time = start + ((x + 0.5) / width) * (end - start);
      const place = all.find(({ offset, seconds }) => time >= offset && time < offset + seconds);
      if (!place) return null;
      const own = this.#levels.get(place.id);
      const half = (end - start) / width / 2 / own.every;
      const at = (time - place.offset) / own.every;
      const first = Math.max(0, Math.floor(at - half));
      return { own, first, last: Math.min(own.n - 1, Math.max(first, Math.ceil(at + half) - 1)) };
    });
  }

  #drawMap(map, width, columns) {
    const height = this.#rows.length;
    const loudness = new Uint8Array(width * height);
    let top = 0;
    columns.forEach((column, x) => {
      if (!column) return;
      const { own, first, last } = column;
      this.#rows.forEach(({ components }, y) => {
        let loudest = 0;
        for (let step = first; step <= last; step++) loudest = Math.max(loudest, byteOf(own, components, step));
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
      for (let step = column.first; step <= column.last; step++) largest = Math.max(largest, column.own.novelty[step]);
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

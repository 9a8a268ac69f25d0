// A voice without its noise: clean, compare, set the amount.

import { byId, clock, decibels, el, pressed, setBusy } from "./dom.js";
import { act, listenMix, places, placeAt, setAmount, store } from "./store.js";

export const MODES = { result: "Result", before: "Before", noise: "Noise only" };

export class Speech {
  #panel = byId("panel-speech");
  #drawn = "";
  #model = "denoise"; // the name of a separator, or "" for the noise of a pause
  mode = "result"; // what is heard and seen

  constructor(timeline, changed) {
    this.timeline = timeline;
    this.changed = changed;
    timeline.addEventListener("selection", () => this.#enable());
    listenMix(() => this.showMode());
  }

  show(state) {
    const { project, cleaner, job, separators } = state;
    const signature = JSON.stringify([project.noise, cleaner, state.work, state.recordings.length, separators]);
    const isBusy = job?.state === "running";
    if (signature === this.#drawn) return this.#enable(isBusy);
    this.#drawn = signature;
    const focused = document.activeElement?.id;
    this.#panel.replaceChildren(...(state.recordings.length ? this.#content(project, cleaner, separators) : []));
    this.#enable(isBusy);
    this.showMode();
    if (focused) byId(focused)?.focus();
  }

  choose(mode) {
    this.mode = mode;
    this.showMode();
    this.changed();
  }

  // What the picture shows: the parts of the cleaner, each so many decibels lower.
  get parts() {
    const { cleaner } = store.state;
    if (!cleaner || this.mode === "before") return null;
    return Array.from({ length: cleaner.parts }, (_, part) => {
      const isVoice = part === cleaner.voice;
      if (this.mode === "noise") return isVoice ? null : { part, lower: 0 };
      return { part, lower: isVoice ? 0 : store.mix.amount };
    }).filter(Boolean);
  }

  get gains() {
    const { cleaner } = store.state;
    if (!cleaner) return [1];
    const [voice, noise] = { before: [1, 1], noise: [0, 1], result: [1, 10 ** (-store.mix.amount / 20)] }[this.mode];
    return Array.from({ length: cleaner.parts }, (_, part) => (part === cleaner.voice ? voice : noise));
  }

  #content({ noise }, cleaner, separators) {
    const amount = el("input", {
      type: "range", id: "amount", min: 0, max: 60, step: 1, value: store.mix.amount, disabled: !cleaner,
      oninput: () => { setAmount(Number(amount.value)); shown.textContent = decibels(-amount.value); this.changed(); },
    });
    const shown = el("output", { for: "amount" }, decibels(-store.mix.amount));
    const model = el("select", { id: "model" },
      el("option", { value: "" }, "the noise of a pause"), ...Object.keys(separators).map((name) => el("option", { value: name }, name)));
    model.value = this.#model in separators ? this.#model : "";
    model.addEventListener("change", () => (this.#model = model.value));
    const place = noise && places().find(({ id }) => id === noise.recording);
    const where = place ? `${clock(place.offset + noise.start, 1)} to ${clock(place.offset + noise.end, 1)}` : null;
    const clean = () => act("clean", { model: model.value || null });
    return [
      el("div", { class: "steps" },
        el("section", { class: "card-like", "aria-label": "Clean" },
          el("h2", {}, "Clean"),
          el("div", { class: "line" },
            el("button", { type: "button", id: "clean", class: "primary", data: { waits: "" }, onclick: clean }, cleaner ? "Clean again" : "Clean"),
            el("label", {}, "by ", model)),
          el("p", { class: "quiet" }, cleaner
            ? `Cleaned by ${cleaner.label}${where && !(cleaner.label in separators) ? `, ${where}` : ""}.`
            : "“denoise” and “talk” come with ondes; a separator from “ondes train” can be opened. Or the noise of a pause is subtracted: the quietest half second, or yours."),
          el("div", { class: "line" },
            el("button", { type: "button", id: "is-noise", data: { selects: "" }, onclick: () => this.#use() }, "This is noise"),
            el("span", { class: "quiet" }, where ? `Noise: ${where}.` : "Drag over a pause to subtract its noise."),
            noise && el("button", { type: "button", class: "link", onclick: () => act("noise", { recording: null }) }, "Forget"))),
        el("section", { class: "card-like", "aria-label": "Listen and look" },
          el("h2", {}, "Listen and look"),
          el("div", { class: "joined", role: "group", "aria-label": "What is heard and shown" },
            ...Object.entries(MODES).map(([mode, text]) => el("button", {
              type: "button", id: `mode-${mode}`, disabled: !cleaner, onclick: () => this.choose(mode) }, text))),
          el("label", {}, "Noise reduced by ", amount, " ", shown),
          el("p", { class: "quiet" }, "The picture shows what you hear. “O” compares with the original."))),
    ];
  }

  showMode() {
    for (const mode of Object.keys(MODES)) {
      const button = byId(`mode-${mode}`);
      if (button) pressed(button, Boolean(store.state.cleaner) && mode === this.mode);
    }
  }

  async #use() {
    const span = spanOf(this.timeline.selection);
    this.#model = "";
    if (span && (await act("noise", span)) && store.state.job?.state !== "running") act("clean");
  }

  #enable(isBusy = store.state.job?.state === "running") {
    setBusy(this.#panel, isBusy);
    for (const button of this.#panel.querySelectorAll("[data-selects]")) {
      button.disabled = !this.timeline.selection;
      button.title = button.disabled ? "Drag over the picture first" : "";
    }
  }
}

// The frequencies of a selection: without a box, all.
export const bandOf = ({ low, high }) =>
  low === null ? [0, store.state.picture.highest] : [low, high];

// A selection of the page as a part of one recording.
export function spanOf(selection) {
  if (!selection) return null;
  const { id, offset, seconds } = placeAt(selection.start);
  const end = Math.min(selection.end - offset, seconds);
  return { recording: id, start: selection.start - offset, end };
}

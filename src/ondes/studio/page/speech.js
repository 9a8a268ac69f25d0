// A voice without its noise: select a pause, select the voice, listen, set the amount.

import { byId, clock, decibels, el, setBusy } from "./dom.js";
import { act, places, placeAt, setAmount, store } from "./store.js";

export class Speech {
  #panel = byId("panel-speech");
  #drawn = "";

  constructor(timeline) {
    this.timeline = timeline;
    timeline.addEventListener("selection", () => this.#enable());
  }

  show(state) {
    const { project, cleaner, job } = state;
    const signature = JSON.stringify([project.noise, project.voice, cleaner, state.work, state.recordings.length]);
    const isBusy = job?.state === "running";
    if (signature === this.#drawn) return this.#enable(isBusy);
    this.#drawn = signature;
    const focused = document.activeElement?.id;
    this.#panel.replaceChildren(...(state.recordings.length ? this.#content(project, cleaner) : []));
    this.#enable(isBusy);
    if (focused) byId(focused)?.focus();
  }

  #content({ noise, voice }, cleaner) {
    const amount = el("input", {
      type: "range", id: "amount", min: 0, max: 60, step: 1, value: store.mix.amount, disabled: !cleaner,
      oninput: () => { setAmount(Number(amount.value)); shown.textContent = decibels(-amount.value); },
    });
    const shown = el("output", { for: "amount" }, decibels(-store.mix.amount));
    return [
      el("ol", { class: "steps" },
        this.#step("noise", noise, "Drag over a pause, where only the noise is heard.", "This is noise"),
        this.#step("voice", voice, "Drag over a part with the voice. This helps with noise that changes.", "This is the speaker", true),
        el("li", {}, el("h3", {}, "Listen"),
          el("p", { class: "quiet" }, cleaner
            ? "Press Play, and compare with “Original”."
            : "Then the noise is learned from what you selected."),
          el("div", { class: "line" },
            el("button", { type: "button", id: "clean", class: "primary", data: { waits: "" }, onclick: () => act("clean") },
              cleaner ? "Learn again" : "Remove the noise"),
            el("label", {}, "Noise reduced by ", amount, " ", shown)))),
    ];
  }

  #step(kind, span, text, label, isOptional = false) {
    const place = span && places().find(({ id }) => id === span.recording);
    const where = place ? `${clock(place.offset + span.start, 1)} to ${clock(place.offset + span.end, 1)}` : null;
    return el("li", {},
      el("h3", {}, kind === "noise" ? "The noise" : "The speaker", isOptional && el("span", { class: "quiet" }, " (optional)")),
      el("p", { class: "quiet" }, where ? `Selected: ${where}.` : text),
      el("div", { class: "line" },
        el("button", { type: "button", id: `is-${kind}`, data: { selects: "" }, onclick: () => this.#use(kind) }, label),
        span && el("button", { type: "button", onclick: () => act(kind, { recording: null }) }, "Forget")));
  }

  async #use(kind) {
    const span = spanOf(this.timeline.selection);
    if (span && (await act(kind, span)) && store.state.project.noise && store.state.job?.state !== "running")
      act("clean");
  }

  #enable(isBusy = store.state.job?.state === "running") {
    setBusy(this.#panel, isBusy || !store.state.project.noise);
    for (const button of this.#panel.querySelectorAll("[data-selects]")) {
      button.disabled = !this.timeline.selection;
      button.title = button.disabled ? "Drag over the picture first" : "";
    }
  }
}

// A selection of the page as a part of one recording.
export function spanOf(selection) {
  if (!selection) return null;
  const { id, offset, seconds } = placeAt(selection.start);
  const end = Math.min(selection.end - offset, seconds);
  return { recording: id, start: selection.start - offset, end };
}

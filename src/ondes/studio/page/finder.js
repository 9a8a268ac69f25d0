// Looking for sounds: how many, and in how many groups.

import { el } from "./dom.js";
import { act, store } from "./store.js";

export function finder(panel, text) {
  const count = el("input", { type: "number", min: 2, max: 64, value: 24, id: `n-sounds-${panel}` });
  const groups = el("input", { type: "number", min: 1, max: 9, value: 4, id: `n-groups-${panel}` });
  const isFast = store.state.recordings.some(({ sr }) => sr > 50000);
  const ultrasonic = el("input", { type: "checkbox", checked: isFast });
  const find = () => act("find", {
    components: Number(count.value), groups: Number(groups.value), ultrasonic: isFast && ultrasonic.checked,
    field: panel === "field",
  });
  return el("div", { class: "line" },
    el("label", {}, "Sounds to look for ", count),
    el("label", {}, "in groups ", groups),
    isFast && el("label", {}, ultrasonic, " ultrasound, too"),
    el("button", { type: "button", class: "primary", id: `find-${panel}`, data: { waits: "" }, onclick: find }, text));
}

// Export and help.

import { byId, el } from "./dom.js";
import { act, sendMix, store } from "./store.js";

const dialog = byId("dialog");

function show(title, ...content) {
  dialog.replaceChildren(
    el("form", { method: "dialog" },
      el("h2", { id: "dialog-title" }, title), ...content));
  dialog.showModal();
}

const closer = (text = "Close") => el("button", { value: "close" }, text);

export function showExport(tab) {
  const { project, components, cleaner, stems } = store.state;
  if (tab === "speech") return exportVoice(cleaner);
  if (tab === "stems") return exportStems(stems);
  if (!components) return show("Export", el("p", {}, "Find the sounds of a recording first."), el("div", { class: "line" }, closer()));
  const groups = project.groups.filter((group) => group.components.length);
  return exportParts("Export groups", "Each group becomes a file with the sampling rate and channels of the recording. With “rest”, they sum to the recording.",
    groups.map(({ id, name }) => [id, name]), "There are no groups yet.",
    (chosen, format) => act("export", { what: "stems", groups: chosen.map(Number), format }),
    (format) => act("export", { what: "mix", format }));
}

function exportStems(stems) {
  if (!stems) return show("Export", el("p", {}, "Press “Separate” first."), el("div", { class: "line" }, closer()));
  return exportParts("Export stems", "Each stem becomes a file with the sampling rate and channels of the recording. All of them sum to the recording.",
    stems.items.map(({ name }) => [name, name]), "",
    (names, format) => act("export", { what: "named", names, format }),
    (format) => act("export", { what: "named mix", format }));
}

// A dialog of parts to choose from: `parts` are pairs of a value and a name.
function exportParts(text, about, parts, nothing, exportChosen, exportMix) {
  const boxes = parts.map(([value]) => el("input", { type: "checkbox", checked: true, value }));
  const format = formats();
  const after = (action) => async () => {
    await sendMix();
    action();
  };
  const chosen = () => boxes.filter((box) => box.checked).map((box) => box.value);
  show("Export",
    el("p", { class: "quiet" }, about),
    parts.length ? el("ul", { class: "plain" }, ...parts.map(([, name], n) => el("li", {}, el("label", {}, boxes[n], ` ${name}`)))) : el("p", {}, nothing),
    el("label", {}, "Format ", format),
    el("div", { class: "line" },
      el("button", { value: "ok", class: "primary", id: "export-stems", disabled: !parts.length, onclick: after(() => exportChosen(chosen(), format.value)) }, text),
      el("button", { value: "ok", id: "export-mix", onclick: after(() => exportMix(format.value)) }, "Export what I hear"),
      closer("Cancel")));
}

function exportVoice(cleaner) {
  if (!cleaner) return show("Export", el("p", {}, "Press “Clean” first."), el("div", { class: "line" }, closer()));
  const format = formats();
  const start = async () => {
    await sendMix();
    act("export", { what: "clean", format: format.value });
  };
  return show("Export",
    el("p", { class: "quiet" }, "The recording with less noise, at its own sampling rate and channels."),
    el("label", {}, "Format ", format),
    el("div", { class: "line" },
      el("button", { value: "ok", class: "primary", id: "export-clean", onclick: start }, "Export"),
      closer("Cancel")));
}

export function showClose() {
  if (store.state.saved !== "changed") return act("close");
  return show("Close",
    el("p", {}, "The work has changed since it was last saved."),
    el("div", { class: "line" },
      el("button", { value: "ok", class: "primary", onclick: () => act("close") }, "Close"),
      closer("Cancel")));
}

const formats = () => el("select", { id: "format" },
  el("option", { value: "wav" }, "WAV (32-bit)"), el("option", { value: "flac" }, "FLAC (24-bit)"));

const KEYS = [
  ["Space", "play or pause"], ["O", "the original, to compare"], ["L", "repeat the selection"],
  ["← →", "move in the picture, or between sounds"], ["Shift ← →", "select"],
  ["+ −", "zoom in and out"], ["Z, Shift Z", "zoom to the selection, show all"],
  ["F", "frequencies evenly spaced, or octaves"], ["[ ]", "show more or fewer frequencies"],
  ["Esc", "clear the selection"], ["1 … 9", "move the sound, or the selected ones, to that group"],
  ["0", "take the sound out of its group"], ["N", "new group"], ["Enter or X", "select or deselect a sound"],
  ["M, S", "mute, solo the sound or group"],
  ["Ctrl Z, Ctrl Shift Z", "undo, redo"], ["Ctrl O, Ctrl S, Ctrl E", "open, save, export"],
];

export function showHelp() {
  show("Keys",
    el("dl", { class: "keys" }, ...KEYS.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])),
    el("p", { class: "quiet" }, "Drag along the picture to select a part, across it for a box of time and frequency; click to move there. The mouse wheel zooms the time with Ctrl, and frequencies with Alt."),
    el("div", { class: "line" }, closer()));
}

// Puts the page together: the state, the picture, the player, the panels and the keys.

import { address, bytes, post, upload } from "./api.js";
import { Board } from "./board.js";
import { byId, clock, el, isTyping, pressed } from "./dom.js";
import { showClose, showExport, showHelp } from "./dialogs.js";
import { Field } from "./field.js";
import { Player } from "./player.js";
import { Speech, bandOf, spanOf } from "./speech.js";
import { Timeline } from "./timeline.js";
import {
  act, complain, duration, factors, listen, listenComplaints, listenMix, openDropped, places, refresh, sendMix, stemFactors, store,
} from "./store.js";

const TABS = ["music", "speech", "field"];
const player = new Player();
const timeline = new Timeline();
const board = new Board(timeline, hear, () => {
  if (audition) setAudition(null);
  loadSound(store.state);
  showChooser();
});
const speech = new Speech(timeline, () => {
  if (isOriginal && speech.mode !== "before") setOriginal(false);
  applyMix();
});
const field = new Field(timeline, player);
let tab = "music";
let isOriginal = false;
let preparedModel = null;
let shownKind = null; // a talk opens in Speech, a folder in Field
let audition = null; // { key, components }: what plays alone, whatever the mix is
const axes = { music: timeline.axis, speech: timeline.axis, field: { ...timeline.axis, isLinear: true } };
const seenMessages = new Set();
const seenDownloads = new Set();

// ---- showing ----

listen((state) => {
  const isOpen = state.recordings.length > 0;
  if (!isOpen && player.isPlaying) player.pause();
  byId("empty").hidden = isOpen;
  byId("timeline").hidden = byId("transport").hidden = !isOpen;
  byId("undo").disabled = !state.can_undo;
  byId("redo").disabled = !state.can_redo;
  showJob(state.job);
  showChooser();
  for (const message of state.messages) if (!seenMessages.has(message.id)) {
    seenMessages.add(message.id);
    say(message.text, message.kind);
  }
  for (const { id, name } of state.downloads) if (!seenDownloads.has(id)) {
    seenDownloads.add(id);
    fetchFile(address(`download/${id}`), name);
    say(`Exported: ${name} is in your downloads.`);
  }
  showSaved(state);
  if (state.kind !== shownKind) {
    shownKind = state.kind;
    if (shownKind && shownKind !== tab) return setTab(shownKind);
  }
  if (isOpen) {
    const [first] = state.recordings;
    const n = state.recordings.length;
    byId("name").textContent = n === 1 ? first.name : `${n} recordings`;
    byId("facts").textContent = `${clock(duration(state))} · ${first.sr / 1000} kHz · ${channelsText(first.channels)}`;
    document.title = `${byId("name").textContent} – ondes studio`;
    timeline.load(places(state), state.picture);
    loadSound(state);
    showMarks(state);
  }
  for (const each of TABS) byId(`panel-${each}`).hidden = !isOpen || each !== tab;
  board.show(state);
  if (state.components && state.components.model !== preparedModel && state.job?.state !== "running") {
    preparedModel = state.components.model;
    timeline.prepare(preparedModel);
  }
  speech.show(state);
  field.show(state, tab === "field");
});

const channelsText = (n) => (n === 1 ? "mono" : n === 2 ? "stereo" : `${n} channels`);

// What the page plays in parts: a voice and noise, stems with names, or numbered sounds.
const isNamed = () => tab === "music" && board.isNamed;
const sourceOf = ({ components, cleaner, stems }) => (tab === "speech" ? cleaner : isNamed() ? stems : components);

function loadSound(state) {
  const { sound } = state;
  const source = sourceOf(state);
  player.load({
    places: places(state),
    sound,
    model: source?.model ?? null,
    chunk: source?.chunk ?? sound.chunk,
    nParts: source ? source.parts ?? source.items.length : 1,
  });
  applyMix();
}

function applyMix() {
  const { components, cleaner, stems } = store.state;
  timeline.replace(tab === "speech" && !isOriginal && cleaner ? { model: cleaner.model, parts: speech.parts } : null);
  if (isOriginal) player.setGains(Array(player.nParts).fill(1));
  else if (audition) player.setGains(Array.from({ length: player.nParts }, (_, n) => Number(audition.components.includes(n))));
  else if (tab === "speech") player.setGains(speech.gains);
  else if (isNamed()) player.setGains(stems ? stemFactors(stems.items.length) : [1]);
  else player.setGains(components ? factors(components.items.length) : [1]);
}

const SAVED = { saved: "saved", changed: "not saved", nothing: "" };
function showSaved({ saved }) {
  if (byId("saved").textContent !== SAVED[saved]) byId("saved").textContent = SAVED[saved];
  byId("saved").className = saved === "changed" ? "quiet tag warn" : saved === "saved" ? "quiet tag" : "quiet";
}

function showMarks({ project }) {
  const all = places();
  const mark = (span, colour, name) => {
    const place = span && all.find(({ id }) => id === span.recording);
    return place ? [{ start: place.offset + span.start, end: place.offset + span.end, colour, name }] : [];
  };
  timeline.marks = tab === "speech" ? mark(project.noise, [240, 128, 128], "noise")
    : tab === "field" ? field.marks : [];
  timeline.drawLines();
}

let shownJob = null;
function showJob(job) {
  const isRunning = job?.state === "running";
  byId("job").hidden = !isRunning;
  if (isRunning) {
    byId("job-title").textContent = job.title;
    const bar = byId("job-progress");
    if (job.fraction === null) bar.removeAttribute("value");
    else bar.value = job.fraction;
  }
  const ended = job && !isRunning ? `${job.id}` : null;
  if (ended && ended !== shownJob && job.state === "failed") say(job.error, "error");
  if (ended && ended !== shownJob && job.state === "cancelled") say("Cancelled.");
  shownJob = ended;
  document.documentElement.dataset.job = job?.state ?? "none";
}

export function say(text, kind = "note") {
  const message = el("p", { class: kind, role: kind === "error" ? "alert" : null }, text,
    el("button", { type: "button", "aria-label": "Close this message", onclick: () => message.remove() }, "×"));
  byId("messages").append(message);
  while (byId("messages").children.length > 4) byId("messages").firstChild.remove();
  if (kind !== "error") setTimeout(() => message.remove(), 8000);
}
listenComplaints((text) => say(text, "error"));

function fetchFile(href, name) {
  const link = el("a", { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

// ---- sound ----

function showPlayer() {
  const button = byId("play");
  button.textContent = player.isPlaying ? "Pause" : "Play";
  button.classList.toggle("playing", player.isPlaying);
  pressed(button, player.isPlaying);
  showTime();
  if (player.isPlaying) requestAnimationFrame(follow);
}

function showTime() {
  const text = `${clock(player.position, 1)} / ${clock(player.duration)}`;
  if (byId("clock").textContent !== text) byId("clock").textContent = text;
  timeline.follow(player.position, player.isPlaying);
}

function follow() {
  showTime();
  const { level } = player;
  byId("level").value = Math.max(0, 1 + Math.log10(level + 1e-9) / 3);
  if (player.isPlaying) requestAnimationFrame(follow);
}

player.addEventListener("change", showPlayer);
player.addEventListener("trouble", (event) => complain(new Error(event.detail)));
listenMix(applyMix);

function toggle() {
  setAudition(null);
  if (player.isPlaying) player.pause();
  else player.play();
}

function setAudition(next) {
  audition = next;
  board.hearing = next?.key ?? null;
  applyMix();
  board.showMix();
}

// Plays one sound or group alone, where it is loudest; once more stops it.
function hear(key, components, curve) {
  if (audition?.key === key && player.isPlaying) {
    player.pause();
    return setAudition(null);
  }
  setOriginal(false);
  setAudition({ key, components });
  const loudest = (curve.indexOf(Math.max(...curve)) + 0.5) / curve.length * player.duration;
  player.seek(timeline.selection?.start ?? Math.max(0, loudest - 1));
  if (!player.isPlaying) player.play();
}

function setOriginal(isOn) {
  if (isOn && audition) setAudition(null);
  isOriginal = isOn;
  pressed(byId("original"), isOn);
  applyMix();
}
function setLoop(isOn) {
  player.loop = isOn ? timeline.selection : null;
  pressed(byId("loop"), Boolean(player.loop));
  if (isOn && !player.loop) say("Drag over the picture first: the selection is repeated.");
  if (player.isPlaying) player.seek(player.position);
}

timeline.addEventListener("seek", (event) => player.seek(event.detail));
timeline.addEventListener("selection", showSelection);
function showSelection() {
  const { selection } = timeline;
  byId("selection").replaceChildren(...(selection
    ? [`${clock(selection.start, 2)} – ${clock(selection.end, 2)}`]
    : ["Drag over the picture", el("span", { class: "long" }, ": along it for a part, across for a box.")]));
  const [low, high] = selection ? bandOf(selection).map(Math.round) : ["", ""];
  for (const [id, value] of [["low", low], ["high", high]]) {
    byId(id).disabled = !selection;
    if (document.activeElement !== byId(id)) byId(id).value = value;
  }
  showChooser();
  if (player.loop) setLoop(Boolean(selection));
}
showSelection();

function showChooser() {
  byId("choose-sounds").hidden = tab !== "music" || board.isNamed;
  byId("choose-sounds").disabled = !timeline.selection || !store.state?.components;
}

for (const id of ["low", "high"]) byId(id).addEventListener("change", () => {
  const { start, end } = timeline.selection;
  const [low, high] = [Number(byId("low").value), Number(byId("high").value)];
  if (high > low) timeline.select(start, end, low, high);
});

async function chooseSounds() {
  const { selection } = timeline;
  const [low, high] = bandOf(selection);
  try {
    board.choose(await post("within", { ...spanOf(selection), low, high }));
  } catch (error) {
    complain(error);
  }
}

timeline.addEventListener("axis", () => {
  axes[tab] = timeline.axis;
  pressed(byId("linear"), timeline.axis.isLinear);
});
const setLinear = () => (timeline.axis = { ...timeline.axis, isLinear: !timeline.axis.isLinear, low: null, high: null });

// ---- buttons ----

const on = (id, action) => byId(id).addEventListener("click", action);
on("play", toggle);
on("original", () => setOriginal(!isOriginal));
on("loop", () => setLoop(!player.loop));
on("undo", () => act("undo"));
on("redo", () => act("redo"));
on("cancel", () => act("cancel"));
on("zoom-in", () => timeline.zoom(0.5));
on("zoom-out", () => timeline.zoom(2));
on("zoom-all", () => timeline.showAll());
on("zoom-selection", () => timeline.showSelection());
on("linear", setLinear);
on("narrower", () => timeline.zoomFrequency(0.6));
on("wider", () => timeline.zoomFrequency(1 / 0.6));
on("choose-sounds", chooseSounds);
on("open", () => byId("files").click());
on("choose", () => byId("files").click());
on("save", save);
on("export", () => showExport(isNamed() ? "stems" : tab));
on("help", showHelp);
on("close", showClose);
byId("volume").addEventListener("input", ({ target }) => player.setVolume(10 ** (target.value / 20)));
byId("files").addEventListener("change", async ({ target }) => {
  await openFiles([...target.files]);
  target.value = "";
});

async function save() {
  await sendMix();
  const [first, ...others] = store.state.recordings;
  const more = others.length ? ` and ${others.length} more` : "";
  const name = `${(first?.name ?? "work").replace(/\.[^.]*$/, "")}${more}.ondes`;
  try {
    const url = URL.createObjectURL(new Blob([await bytes("save")]));
    fetchFile(url, name);
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    await refresh();
    say(`Saved: ${name} is in your downloads.`);
  } catch (error) {
    complain(error);
  }
}

function setTab(next) {
  tab = next;
  for (const each of TABS) {
    const button = byId(`tab-${each}`);
    button.setAttribute("aria-selected", String(each === tab));
    button.tabIndex = each === tab ? 0 : -1;
  }
  document.documentElement.dataset.tab = tab;
  if (audition) setAudition(null);
  timeline.axis = axes[tab];
  showChooser();
  refresh().catch(complain);
}
TABS.forEach((each, n) => {
  on(`tab-${each}`, () => setTab(each));
  byId(`tab-${each}`).addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const next = TABS[(n + step + TABS.length) % TABS.length];
    setTab(next);
    byId(`tab-${next}`).focus();
  });
});

// ---- files dropped onto the page ----

async function openFiles(files) {
  const ids = [];
  for (const file of files) {
    try {
      byId("job").hidden = false;
      byId("job-title").textContent = `Copying ${file.name}`;
      byId("job-progress").removeAttribute("value");
      ids.push((await upload(file)).id);
    } catch (error) {
      complain(error);
    }
  }
  byId("job").hidden = true;
  if (ids.length) await openDropped(ids);
}

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  byId("drop").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) byId("drop").hidden = true;
});
document.addEventListener("drop", (event) => {
  byId("drop").hidden = true;
  if (!hasFiles(event)) return;
  event.preventDefault();
  openFiles([...event.dataTransfer.files]);
});

// ---- keys ----

// After a click with the mouse the space bar plays again; from the keyboard, the focus stays.
document.addEventListener("click", ({ detail, target }) => {
  if (detail > 0) target.closest?.("button, input[type=range]")?.blur();
});

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand && !event.altKey) {
    const commands = {
      z: () => act(event.shiftKey ? "redo" : "undo"), y: () => act("redo"),
      s: save, o: () => byId("files").click(), e: () => showExport(isNamed() ? "stems" : tab),
    };
    const command = commands[key.toLowerCase()];
    if (!command || (isTyping(target) && "zy".includes(key.toLowerCase()))) return;
    event.preventDefault();
    command();
    return;
  }
  if (event.altKey || event.defaultPrevented || isTyping(target) || byId("dialog").open) return;
  const isButton = target.closest?.("button, summary, a");
  const keys = {
    " ": () => !isButton && toggle(), o: () => setOriginal(!isOriginal), l: () => setLoop(!player.loop),
    "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5), "-": () => timeline.zoom(2),
    z: () => (event.shiftKey ? timeline.showAll() : timeline.showSelection()),
    escape: () => { timeline.select(0, 0); board.choose([]); }, "?": showHelp,
    f: setLinear, "]": () => timeline.zoomFrequency(0.6), "[": () => timeline.zoomFrequency(1 / 0.6),
  };
  const action = keys[key.toLowerCase()];
  if (!action || (key === " " && isButton)) return;
  event.preventDefault();
  action();
});

// What a test can look at: the sound that really plays.
window.ondesStudio = { player, timeline, store };

refresh().catch(complain);

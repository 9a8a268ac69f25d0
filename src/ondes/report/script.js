"use strict";
// One clock for every sound: whatever is chosen plays from the same position in time. Without this
// script each sound keeps the browser's own player.
(() => {
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const toggle = find("#toggle"), seek = find("#seek"), clock = find("#clock");
  const choice = find("#choice"), loop = find("#loop"), trouble = find("#trouble");
  const duration = Number(seek.max);
  const sources = all("[data-mutes]").map((button) => button.dataset.mutes);
  const muted = new Set(), soloed = new Set();
  const decibels = new Map(); // source -> its volume
  const decoded = new Map(); // track -> promise of its samples
  const voices = new Map(); // track -> what plays now
  let context = null;
  let isPlaying = false;
  let isLooping = false;
  let position = 0; // seconds, while nothing plays
  let origin = null; // when position 0 played, in the context's time
  let latestChange = 0;

  const audio = (id) => document.getElementById(id).querySelector("audio");
  const startOf = (id) => (id === "sources" ? 0 : Number(audio(id).dataset.start));
  const endOf = (id) =>
    id === "sources" ? duration : startOf(id) + Number(audio(id).dataset.seconds);
  const now = () =>
    origin === null ? position : Math.min(Math.max(context.currentTime - origin, 0), duration);
  const wanted = () => (choice.value === "sources" ? sources : [choice.value]);

  // Muted is muted, however a source was chosen; solo matters where sources play together.
  function gainOf(id) {
    const isOther = choice.value === "sources" && soloed.size > 0 && !soloed.has(id);
    return muted.has(id) || isOther ? 0 : 10 ** ((decibels.get(id) ?? 0) / 20);
  }

  function bytesOf(id) {
    const [head, base64] = audio(id).src.split(",");
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return { bytes, type: head.slice(5).split(";")[0] };
  }

  function load(id) {
    const samples = decoded.get(id) ?? context.decodeAudioData(bytesOf(id).bytes.buffer);
    // Dozens of components would fill a phone's memory: only the stems are kept.
    if (!id.startsWith("component")) decoded.set(id, samples);
    return samples;
  }

  function start(id, samples, time) {
    const node = new AudioBufferSourceNode(context, { buffer: samples });
    const gain = new GainNode(context, { gain: 0 });
    const first = origin + startOf(id); // when its first sample plays
    node.connect(gain).connect(context.destination);
    node.start(Math.max(time, first), Math.max(time - first, 0));
    voices.set(id, { node, gain });
  }

  function stop(id, time) {
    const { node, gain } = voices.get(id);
    gain.gain.setTargetAtTime(0, time, 0.005);
    node.stop(time + 0.05);
    voices.delete(id);
  }

  // Makes what plays agree with what is wanted; old voices continue until the new ones are ready.
  async function update() {
    const change = ++latestChange;
    const ids = isPlaying ? wanted() : [];
    show();
    try {
      const samples = await Promise.all(ids.map(load));
      if (change !== latestChange || !context) return;
      const soon = context.currentTime + 0.02;
      if (isPlaying) origin ??= soon - position;
      [...voices.keys()].filter((id) => !ids.includes(id)).forEach((id) => stop(id, soon));
      ids.forEach((id, i) => voices.has(id) || start(id, samples[i], soon));
      voices.forEach(({ gain }, id) => gain.gain.setTargetAtTime(gainOf(id), soon, 0.005));
      trouble.textContent = "";
    } catch (error) {
      pause();
      trouble.textContent = "This browser could not decode the sound.";
    }
  }

  function play() {
    context ??= new AudioContext();
    // Otherwise the silent switch of a phone silences the page.
    if (navigator.audioSession) navigator.audioSession.type = "playback";
    context.resume();
    const at = now();
    if (at < startOf(choice.value) || at >= endOf(choice.value) - 0.01) place(startOf(choice.value));
    isPlaying = true;
    document.documentElement.classList.add("started");
    update();
    requestAnimationFrame(follow);
  }

  function pause() {
    position = now();
    origin = null;
    isPlaying = false;
    update();
  }

  function place(seconds) {
    position = Math.min(Math.max(seconds, 0), duration);
    origin = null;
    [...voices.keys()].forEach((id) => stop(id, context.currentTime));
  }

  function goTo(seconds) {
    place(seconds);
    document.documentElement.classList.add("started");
    update();
  }

  function follow() {
    if (!isPlaying) return;
    if (now() >= endOf(choice.value) && isLooping) {
      goTo(startOf(choice.value));
      requestAnimationFrame(follow);
    } else if (now() >= endOf(choice.value)) {
      pause();
      goTo(startOf(choice.value));
    } else {
      showTime();
      requestAnimationFrame(follow);
    }
  }

  const write = (seconds) =>
    `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

  function showTime() {
    const at = now();
    const text = `${write(at)} / ${write(Math.round(duration))}`;
    document.documentElement.style.setProperty("--played", at / duration);
    seek.value = at;
    if (clock.textContent !== text) {
      clock.textContent = text;
      seek.setAttribute("aria-valuetext", text.replace("/", "of"));
    }
  }

  function showButton(button, isOn, name) {
    const word = isOn ? "Pause" : "Play";
    button.classList.toggle("playing", isOn);
    button.firstElementChild.textContent = word;
    button.setAttribute("aria-label", `${word} ${name}`);
  }

  function show() {
    const ids = isPlaying ? wanted() : [];
    const press = (button, isOn) => button.setAttribute("aria-pressed", String(isOn));
    showTime();
    showButton(toggle, isPlaying, choice.selectedOptions[0].text);
    for (const button of all("[data-plays]")) {
      const id = button.dataset.plays;
      const track = document.getElementById(id);
      showButton(button, isPlaying && choice.value === id, track.querySelector("h3").textContent);
      track.classList.toggle("audible", ids.includes(id) && gainOf(id) > 0);
    }
    for (const button of all("[data-mutes]")) press(button, muted.has(button.dataset.mutes));
    for (const button of all("[data-solos]")) press(button, soloed.has(button.dataset.solos));
    press(loop, isLooping);
  }

  // Who plays a source wants to hear it.
  function playOnly(id) {
    if (isPlaying && choice.value === id && !muted.has(id)) return pause();
    muted.delete(id);
    choice.value = id;
    play();
  }

  function mute(id) {
    if (!muted.delete(id)) muted.add(id);
    if (choice.value !== id) choice.value = "sources";
    update();
  }

  function solo(id) {
    if (!soloed.delete(id)) soloed.add(id);
    if (soloed.has(id)) muted.delete(id);
    choice.value = "sources";
    update();
  }

  function download(id) {
    const { bytes, type } = bytesOf(id);
    const link = document.createElement("a");
    const name = document.getElementById(id).querySelector("h3").textContent;
    link.download = `${name.replace(/[^\p{L}\p{N} _-]/gu, "_")}.${type.split("/")[1]}`;
    link.href = URL.createObjectURL(new Blob([bytes], { type }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  toggle.addEventListener("click", () => (isPlaying ? pause() : play()));
  seek.addEventListener("input", () => goTo(Number(seek.value)));
  choice.addEventListener("change", () => (isPlaying ? play() : update()));
  loop.addEventListener("click", () => {
    isLooping = !isLooping;
    show();
  });
  document.addEventListener("input", ({ target }) => {
    const id = target.dataset.volume;
    if (!id) return;
    decibels.set(id, Number(target.value));
    target.setAttribute("aria-valuetext", `${target.value} dB`);
    update();
  });
  document.addEventListener("click", ({ target, clientX }) => {
    const { plays, mutes, solos, downloads } = target.closest("button")?.dataset ?? {};
    const area = target.closest(".timeline .area");
    if (plays) playOnly(plays);
    if (mutes) mute(mutes);
    if (solos) solo(solos);
    if (downloads) download(downloads);
    if (area) {
      const { left, width } = area.getBoundingClientRect();
      goTo((duration * (clientX - left)) / width);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.code !== "Space" || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("button, select, input, a, audio")) return;
    event.preventDefault();
    toggle.click();
  });

  for (const element of all("audio")) element.hidden = true;
  for (const element of all(".scripted")) element.hidden = false;
  show();
})();

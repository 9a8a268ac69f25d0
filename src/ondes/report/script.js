"use strict";
// One clock for every sound: whatever is chosen plays from the same position in time. Without this
// script each sound keeps the browser's own player.
(() => {
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const toggle = find("#toggle"), seek = find("#seek"), clock = find("#clock");
  const choice = find("#choice"), trouble = find("#trouble");
  const duration = Number(seek.max);
  const sources = all("[data-mutes]").map((button) => button.dataset.mutes);
  const muted = new Set();
  const decoded = new Map(); // track -> promise of its samples
  const voices = new Map(); // track -> what plays now
  let context = null;
  let isPlaying = false;
  let position = 0; // seconds, while nothing plays
  let origin = null; // when position 0 played, in the context's time
  let latestChange = 0;

  const now = () =>
    origin === null ? position : Math.min(Math.max(context.currentTime - origin, 0), duration);
  const wanted = () =>
    choice.value === "sources" ? sources.filter((id) => !muted.has(id)) : [choice.value];

  function decode(id) {
    const base64 = document.getElementById(id).querySelector("audio").src.split(",")[1];
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return context.decodeAudioData(bytes.buffer);
  }

  function load(id) {
    const samples = decoded.get(id) ?? decode(id);
    // Dozens of components would fill a phone's memory: only the stems are kept.
    if (!id.startsWith("component")) decoded.set(id, samples);
    return samples;
  }

  function start(id, samples, time) {
    const node = new AudioBufferSourceNode(context, { buffer: samples });
    const gain = new GainNode(context, { gain: 0 });
    node.connect(gain).connect(context.destination);
    gain.gain.setTargetAtTime(1, time, 0.005);
    node.start(time, time - origin);
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

  function goTo(seconds) {
    position = Math.min(Math.max(seconds, 0), duration);
    origin = null;
    [...voices.keys()].forEach((id) => stop(id, context.currentTime));
    document.documentElement.classList.add("started");
    update();
  }

  function follow() {
    if (!isPlaying) return;
    if (now() >= duration) {
      pause();
      goTo(0);
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
    showTime();
    showButton(toggle, isPlaying, choice.selectedOptions[0].text);
    for (const button of all("[data-plays]")) {
      const id = button.dataset.plays;
      const track = document.getElementById(id);
      showButton(button, isPlaying && choice.value === id, track.querySelector("h3").textContent);
      track.classList.toggle("audible", ids.includes(id));
    }
    for (const button of all("[data-mutes]"))
      button.setAttribute("aria-pressed", String(muted.has(button.dataset.mutes)));
  }

  function playOnly(id) {
    if (isPlaying && choice.value === id) return pause();
    choice.value = id;
    play();
  }

  function mute(id) {
    if (!muted.delete(id)) muted.add(id);
    choice.value = "sources";
    update();
  }

  toggle.addEventListener("click", () => (isPlaying ? pause() : play()));
  seek.addEventListener("input", () => goTo(Number(seek.value)));
  choice.addEventListener("change", update);
  document.addEventListener("click", ({ target, clientX }) => {
    const { plays, mutes } = target.closest("button")?.dataset ?? {};
    const area = target.closest(".timeline .area");
    if (plays) playOnly(plays);
    if (mutes) mute(mutes);
    if (area) {
      const { left, width } = area.getBoundingClientRect();
      goTo((duration * (clientX - left)) / width);
    }
  });

  for (const audio of all("audio")) audio.hidden = true;
  for (const element of all(".scripted")) element.hidden = false;
  show();
})();

// Plays all parts of the sound at once, chunk by chunk: each part has its own gain, so that muting
// is heard immediately. Only the next seconds are in memory.

import { bytes } from "./api.js";

const AHEAD = 2.2; // seconds that are scheduled in advance
const FADE = 0.008; // time constant of gains

export class Player extends EventTarget {
  #context = null;
  #master = null;
  #analyser = null;
  #samples = null;
  #gains = [];
  #wanted = [];
  #played = []; // what is scheduled: { from, to, start } in the context's and the recording's time
  #run = 0;
  #position = 0;
  #volume = 1;
  #sources = new Set();
  #abort = null;
  places = [];
  sound = { rate: 44100, channels: 2 };
  model = null; // null: the recording itself
  chunk = 44100;
  nParts = 1;
  loop = null; // { start, end } in seconds
  isPlaying = false;

  get duration() {
    const last = this.places.at(-1);
    return last ? last.offset + last.seconds : 0;
  }

  get position() {
    if (!this.isPlaying || !this.#played.length) return this.#position;
    const now = this.#context.currentTime;
    while (this.#played.length > 1 && this.#played[0].to <= now) this.#played.shift();
    const { from, to, start } = this.#played[0];
    return start + Math.max(0, Math.min(now, to) - from);
  }

  get contextState() {
    return this.#context?.state ?? "none";
  }

  // What plays is replaced without losing the place.
  load({ places, sound, model, chunk, nParts }) {
    const isSame =
      model === this.model && chunk === this.chunk && nParts === this.nParts &&
      sound.rate === this.sound.rate && sound.channels === this.sound.channels &&
      places.length === this.places.length && places[0]?.id === this.places[0]?.id;
    Object.assign(this, { places, sound, model, chunk, nParts });
    if (isSame) return;
    const wasPlaying = this.isPlaying;
    this.#halt();
    if (this.#context && this.#context.sampleRate !== sound.rate) {
      this.#context.close();
      this.#context = null;
    }
    this.#gains = [];
    if (wasPlaying) this.play();
  }

  setGains(factors) {
    this.#wanted = factors;
    this.#gains.forEach((node, part) =>
      node.gain.setTargetAtTime(factors[part] ?? 1, this.#context.currentTime, FADE));
  }

  setVolume(factor) {
    this.#volume = factor;
    this.#master?.gain.setTargetAtTime(factor, this.#context.currentTime, FADE);
  }

  // Root mean square of what sounds now.
  get level() {
    if (!this.#analyser || this.#context.state !== "running") return 0;
    this.#analyser.getFloatTimeDomainData(this.#samples);
    return Math.sqrt(this.#samples.reduce((sum, x) => sum + x * x, 0) / this.#samples.length);
  }

  async play() {
    if (!this.places.length) return;
    this.#prepare();
    await this.#context.resume();
    if (this.#position >= this.duration - 0.02) this.#position = 0;
    const { loop } = this;
    if (loop && (this.#position < loop.start || this.#position >= loop.end)) this.#position = loop.start;
    this.isPlaying = true;
    this.#changed();
    this.#schedule(++this.#run, this.#position);
  }

  pause() {
    this.#halt();
    this.#changed();
  }

  seek(seconds) {
    const wasPlaying = this.isPlaying;
    this.#halt();
    this.#position = Math.min(Math.max(seconds, 0), this.duration);
    this.#changed();
    if (wasPlaying) this.play();
  }

  #prepare() {
    if (!this.#context) {
      this.#context = new AudioContext({ sampleRate: this.sound.rate, latencyHint: "interactive" });
      // Otherwise the silent switch of a phone silences the page.
      if (navigator.audioSession) navigator.audioSession.type = "playback";
      this.#master = new GainNode(this.#context, { gain: this.#volume });
      this.#analyser = new AnalyserNode(this.#context, { fftSize: 2048 });
      this.#samples = new Float32Array(this.#analyser.fftSize);
      this.#master.connect(this.#analyser).connect(this.#context.destination);
      this.#gains = [];
    }
    if (this.#gains.length !== this.nParts) {
      this.#gains.forEach((node) => node.disconnect());
      this.#gains = Array.from({ length: this.nParts }, (_, part) => {
        const node = new GainNode(this.#context, { gain: this.#wanted[part] ?? 1 });
        node.connect(this.#master);
        return node;
      });
    }
  }

  #halt() {
    this.#position = this.position;
    this.isPlaying = false;
    this.#run++;
    this.#abort?.abort();
    this.#played = [];
    for (const source of this.#sources) source.stop();
    this.#sources.clear();
  }

  async #schedule(run, position) {
    let at = 0; // the context's time of the next chunk
    this.#abort = new AbortController();
    try {
      while (run === this.#run && position < this.duration - 1e-6) {
        const end = this.loop && position < this.loop.end ? this.loop.end : this.duration;
        const part = this.#next(position, end);
        const data = await bytes(part.path, this.#abort.signal);
        if (run !== this.#run) return;
        const now = this.#context.currentTime;
        at = Math.max(at, now + 0.03);
        this.#start(data, part, at);
        this.#played.push({ from: at, to: at + part.seconds, start: position });
        at += part.seconds;
        position += part.seconds;
        if (this.loop && Math.abs(position - this.loop.end) < 1e-3) position = this.loop.start;
        while (run === this.#run && at - this.#context.currentTime > AHEAD)
          await new Promise((done) => setTimeout(done, 60));
      }
      while (run === this.#run && this.#context.currentTime < at)
        await new Promise((done) => setTimeout(done, 60));
      if (run !== this.#run) return;
      this.#halt();
      this.#position = this.duration;
      this.#changed();
    } catch (error) {
      if (run !== this.#run) return;
      this.pause();
      this.dispatchEvent(new CustomEvent("trouble", { detail: error.message }));
    }
  }

  // The part of a chunk from a position to the end of that chunk, or to `end`.
  #next(position, end) {
    const place = this.places.find(({ offset, seconds }) => position < offset + seconds - 1e-6) ?? this.places.at(-1);
    const { rate } = this.sound;
    const sample = Math.round((position - place.offset) * rate);
    const index = Math.floor(sample / this.chunk);
    const offset = sample - index * this.chunk;
    const last = Math.min((index + 1) * this.chunk, Math.round(place.seconds * rate),
      Math.round((end - place.offset) * rate));
    const model = this.model === null ? "" : `/${this.model}`;
    return {
      path: `sound/${place.id}/${index}${model}`,
      offset: offset / rate,
      seconds: Math.max(1, last - sample) / rate,
    };
  }

  #start(data, { offset, seconds }, at) {
    const { rate, channels } = this.sound;
    const peaks = new Float32Array(data, 0, this.nParts);
    const samples = new Int16Array(data, 4 * this.nParts);
    const n = samples.length / this.nParts / channels;
    if (!Number.isInteger(n) || n < 1) return;
    peaks.forEach((peak, part) => {
      if (peak === 0) return;
      const buffer = new AudioBuffer({ length: n, numberOfChannels: channels, sampleRate: rate });
      for (let channel = 0; channel < channels; channel++) {
        const target = buffer.getChannelData(channel);
        const first = (part * channels + channel) * n;
        const scale = peak / 32767;
        for (let i = 0; i < n; i++) target[i] = samples[first + i] * scale;
      }
      const source = new AudioBufferSourceNode(this.#context, { buffer });
      source.connect(this.#gains[part]);
      source.start(at, offset, seconds);
      this.#sources.add(source);
      source.onended = () => {
        source.disconnect();
        this.#sources.delete(source);
      };
    });
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

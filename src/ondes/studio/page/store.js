// The state of the studio as the server has it; whoever shows it listens for changes.

import { json, post } from "./api.js";

const POLL_MS = 250;
const listeners = new Set();
let isPolling = false;

export const store = { state: null, mix: { gains: {}, muted: new Set(), soloed: new Set(), amount: 30 } };

export const listen = (listener) => listeners.add(listener);

export function tell() {
  for (const listener of listeners) listener(store.state);
}

function take(state) {
  const before = store.state;
  // While a request was on its way a newer answer may have come.
  if (before && state.version < before.version) return;
  store.state = state;
  const isFirst = before === null || before.project.model !== state.project.model;
  if (isFirst || before.work !== state.work) takeMix(state.mix);
  tell();
  if (state.job?.state === "running") poll();
}

function takeMix({ gains, muted, soloed, amount }) {
  store.mix = { gains: { ...gains }, muted: new Set(muted), soloed: new Set(soloed), amount };
}

async function poll() {
  if (isPolling) return;
  isPolling = true;
  try {
    while (store.state.job?.state === "running") {
      await new Promise((done) => setTimeout(done, POLL_MS));
      take(await json("state"));
    }
  } catch (error) {
    complain(error);
  } finally {
    isPolling = false;
  }
}

export async function refresh() {
  take(await json("state"));
}

export async function act(action, values = {}) {
  try {
    take(await post("do", { action, ...values }));
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

export async function openDropped(ids) {
  try {
    take(await post("open", { ids }));
  } catch (error) {
    complain(error);
  }
}

// Gains are heard at once, and sent a little later: a slider moves often.
let waiting = new Map();
export function mix(key, change) {
  const own = store.mix;
  if ("gain" in change) own.gains[key] = change.gain;
  if ("mute" in change) own.muted[change.mute ? "add" : "delete"](key);
  if ("solo" in change) own.soloed[change.solo ? "add" : "delete"](key);
  if (waiting.size === 0) setTimeout(sendMix, 150);
  waiting.set(key, { ...waiting.get(key), ...change });
  tellMix();
}

export function clearMix(isOwn) {
  for (const key of [...store.mix.muted].filter(isOwn)) mix(key, { mute: false });
  for (const key of [...store.mix.soloed].filter(isOwn)) mix(key, { solo: false });
}

export function setAmount(amount) {
  store.mix.amount = amount;
  if (waiting.size === 0) setTimeout(sendMix, 150);
  waiting.set("amount", amount);
  tellMix();
}

// Resolves when the server has everything: whoever saves or exports waits for it.
let sending = Promise.resolve();
export function sendMix() {
  sending = sending.then(sendWaiting);
  return sending;
}

async function sendWaiting() {
  const changes = waiting;
  waiting = new Map();
  for (const [key, change] of changes) {
    const action = key === "amount" ? { action: "amount", amount: change } : { action: "mix", key, ...change };
    try {
      const { saved } = await post("do", action);
      if (saved !== store.state.saved) {
        store.state.saved = saved;
        tell();
      }
    } catch (error) {
      complain(error);
    }
  }
}

const mixListeners = new Set();
export const listenMix = (listener) => mixListeners.add(listener);
function tellMix() {
  for (const listener of mixListeners) listener();
}

const complaintListeners = new Set();
export const listenComplaints = (listener) => complaintListeners.add(listener);
export function complain(error) {
  for (const listener of complaintListeners) listener(error.message ?? String(error));
}

// Where every recording lies on the one time line of the page.
export function places(state = store.state) {
  let offset = 0;
  return state.recordings.map((recording) => {
    const place = { ...recording, offset };
    offset += recording.seconds;
    return place;
  });
}

export const duration = (state = store.state) =>
  state.recordings.reduce((total, { seconds }) => total + seconds, 0);

export function placeAt(time) {
  const all = places();
  return all.find(({ offset, seconds }) => time < offset + seconds) ?? all.at(-1);
}

// The factor of what has these keys, as the export has it (Mix.factor in project.py).
function factor(keys) {
  const { gains, muted, soloed } = store.mix;
  const isStem = (key) => key.startsWith("s");
  const solos = [...soloed].filter((key) => isStem(key) === isStem(keys[0]));
  if (keys.some((key) => muted.has(key)) || (solos.length && !keys.some((key) => soloed.has(key)))) return 0;
  return 10 ** (keys.reduce((sum, key) => sum + (gains[key] ?? 0), 0) / 20);
}

export function factors(n) {
  const owner = new Map();
  for (const { id, components } of store.state.project.groups)
    for (const component of components) owner.set(component, `g${id}`);
  return Array.from({ length: n }, (_, index) => factor([`c${index}`, owner.get(index)].filter(Boolean)));
}

export const stemFactors = (n) => Array.from({ length: n }, (_, index) => factor([`s${index}`]));

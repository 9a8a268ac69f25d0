// Elements and texts. Everything that comes from a file becomes text, never HTML.

export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function clock(seconds, decimals = 0) {
  const scale = 10 ** decimals;
  const total = Math.floor(Math.max(seconds, 0) * scale + 1e-6) / scale;
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor(total / 60) % 60;
  const rest = (total % 60).toFixed(decimals).padStart(decimals ? decimals + 3 : 2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

// The time of day where the recording's name has it, else the time from the beginning; and the file.
export function moment(places, time, decimals = 0) {
  const place = places.find(({ offset, seconds }) => time < offset + seconds) ?? places.at(-1);
  if (!place) return { text: clock(time, decimals), name: "" };
  if (!place.clock) return { text: clock(time, decimals), name: place.name };
  const scale = 10 ** decimals;
  const at = Math.floor((time - place.offset) * scale + 1e-6) / scale;
  const day = new Date(`${place.clock.slice(0, 19)}Z`);
  const iso = new Date(day.getTime() + Math.round(at * 1000)).toISOString();
  return { text: iso.slice(11, decimals ? 20 + decimals : 19), name: place.name };
}

export const decibels = (value, digits = 0) =>
  `${value < -0.05 ? "−" : ""}${Math.abs(value).toFixed(digits)} dB`;

export const percent = (share) =>
  share >= 0.0995 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`;

export const hertz = (value) =>
  value < 40 ? "0 to 40 Hz" : value >= 1000 ? `${(value / 1000).toFixed(value < 9950 ? 1 : 0)} kHz` : `${Math.round(value)} Hz`;

export function pressed(button, isOn) {
  button.setAttribute("aria-pressed", String(isOn));
}

// Buttons that start a long computation wait while another one runs.
export function setBusy(panel, isBusy) {
  for (const button of panel.querySelectorAll("[data-waits]")) button.disabled = isBusy;
}

export function isTyping(target) {
  return target instanceof HTMLInputElement
    ? !["range", "checkbox", "radio", "button", "file"].includes(target.type)
    : target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

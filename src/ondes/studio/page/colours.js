// Colours of groups, and of levels.

// One hue for each key from 1 to 9; style.css has the same as --hue-1 and so on.
export const HUES = [
  [239, 138, 98], [103, 169, 207], [127, 191, 123], [231, 191, 79], [197, 141, 219],
  [240, 128, 164], [92, 200, 190], [176, 160, 130], [143, 152, 240],
];
export const REST_HUE = [160, 165, 170];

export const hueOf = (id) => 1 + ((id - 1) % HUES.length);
export const rgbOf = (id) => (id ? HUES[hueOf(id) - 1] : REST_HUE);

const STOPS = [
  [0, 4, 4, 14], [0.2, 40, 17, 89], [0.4, 114, 31, 129], [0.6, 196, 60, 117],
  [0.8, 249, 142, 90], [1, 252, 250, 200],
];

export function ramp(position) {
  const next = Math.max(1, STOPS.findIndex(([at]) => at >= position));
  const [a, b] = [STOPS[next - 1], STOPS[next]];
  const t = (position - a[0]) / (b[0] - a[0]);
  return [1, 2, 3].map((i) => Math.round(a[i] + t * (b[i] - a[i])));
}

// Bytes are half decibels: `top` is the brightest, `range` the number of them below it.
export function lookup(top, range, colour = null) {
  const table = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const t = Math.min(1, Math.max(0, 1 - (top - byte) / range));
    const [r, g, b] = colour ?? ramp(t);
    const alpha = colour ? Math.round(255 * t ** 1.3) : 255;
    table[byte] = (alpha << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

"""Pictures of spectrograms, spectra, activations and learning.

A picture contains no text: the page writes the axes, so that they stay legible on a phone and
follow its light or dark colours.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.report.content import clock
from ondes.signal.stft import Stft

__all__ = [
    "Axis",
    "Picture",
    "Timeline",
    "activation",
    "colour_scale",
    "learning_curve",
    "spectrogram",
    "spectrum",
]

Array = NDArray[np.floating]

COLOURS = "magma"
RANGE_DB = 80
CURVE_RANGE_DB = 60
ACTIVE_DB = 30
MAX_COLUMNS = 1000
N_ROWS = 160
CURVE_POINTS = 200
CURVE_WIDTH, CURVE_HEIGHT = 1000, 100


@dataclass(frozen=True)
class Axis:
    """A labelled axis; each tick is a position in percent and its text."""

    label: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Picture:
    """A picture with its axes: either an image (`uri`) or a curve (`path`, of an SVG)."""

    description: str
    x: Axis
    y: Axis
    uri: str = ""
    path: str = ""


@dataclass(frozen=True)
class Timeline:
    """Where frames lie in time."""

    n_samples: int
    sr: int
    stft: Stft

    @property
    def seconds(self) -> float:
        """Length of the signal."""
        return self.n_samples / self.sr

    def average(self, frames: Array, max_columns: int) -> Array:
        """Average frames, rows are time, over at most `max_columns` equal spans of the signal."""
        first = self.stft.n_padding / 2 / self.stft.hop_length
        last = first + self.n_samples / self.stft.hop_length
        n_columns = max(1, min(max_columns, len(frames)))
        return _average_cells(frames, np.linspace(first, last, n_columns + 1))

    def axis(self) -> Axis:
        """The axis of the signal's time."""
        from matplotlib.ticker import MaxNLocator

        in_seconds = self.seconds <= 90
        unit = 1 if in_seconds else 60
        steps = [1, 2, 2.5, 5, 10] if in_seconds else [1, 2, 5, 10]
        values = unit * np.asarray(MaxNLocator(6, steps=steps).tick_values(0, self.seconds / unit))
        return Axis(
            "Time (s)" if in_seconds else "Time (min:s)",
            _ticks(values, (0, self.seconds), lambda x: x, _plain if in_seconds else clock),
        )


def spectrogram(name: str, frames: Array, timeline: Timeline, reference: float) -> Picture:
    """Draw power frames, shape (n_frames, n_bins), in dB below `reference`."""
    highest = timeline.sr / 2
    edges = _hertz(np.linspace(0, _mel(highest), N_ROWS + 1))
    columns = timeline.average(frames, MAX_COLUMNS)
    cells = _average_cells(columns.T, edges * timeline.stft.n_fft / timeline.sr + 0.5)
    return Picture(
        f"Spectrogram of {name}, 0 to {clock(timeline.seconds)}: "
        + _describe_spectrogram(columns, timeline),
        x=timeline.axis(),
        y=_frequency_axis(highest),
        uri=_image(_decibels(cells, reference)),
    )


def spectrum(name: str, bins: Array, sr: int) -> Picture:
    """Draw the power of each bin, shape (n_bins,), in dB below its peak."""
    mels = np.linspace(0, _mel(sr / 2), CURVE_POINTS)
    hertz = np.linspace(0, sr / 2, len(bins))
    levels = np.interp(_hertz(mels), hertz, _decibels(bins, float(bins.max())))
    low, middle, high = np.interp([0.1, 0.5, 0.9], _shares(bins), hertz)
    return Picture(
        f"Spectrum of {name}: strongest at {_in_hertz(hertz[bins.argmax()])}, half of its power "
        f"below {_in_hertz(middle)}, four fifths from {_in_hertz(low)} to {_in_hertz(high)}.",
        x=_frequency_axis(sr / 2),
        y=_decibel_axis("Power (dB)"),
        path=_curve_path(mels, levels, (0, mels[-1]), (-CURVE_RANGE_DB, 0)),
    )


def activation(name: str, powers: Array, timeline: Timeline, reference: float) -> Picture:
    """Draw the power of each frame, shape (n_frames,), in dB below `reference`."""
    columns = timeline.average(powers[:, None], CURVE_POINTS)[:, 0]
    levels = _decibels(columns, reference)
    times = (np.arange(len(levels)) + 0.5) * timeline.seconds / len(levels)
    active = np.mean(columns > columns.max() * 10 ** (-ACTIVE_DB / 10))
    return Picture(
        f"Activation of {name}: loudest at {times[columns.argmax()]:.1f} s, "
        f"within {ACTIVE_DB} dB of that for {active:.0%} of the time.",
        x=timeline.axis(),
        y=_decibel_axis("Level (dB)"),
        path=_curve_path(times, levels, (0, timeline.seconds), (-CURVE_RANGE_DB, 0)),
    )


def learning_curve(name: str, curve: Sequence[tuple[float, float]]) -> Picture | None:
    """Draw divergence against frames learned, both logarithmic; None without two points."""
    points = np.array([(n, d) for n, d in curve if n > 0 and 0 < d < math.inf])
    if len(points) < 2 or points[0, 0] == points[-1, 0]:
        return None
    (first, before), (last, after) = points[0], points[-1]
    margin = (points[:, 1].max() / points[:, 1].min()) ** 0.08 * 1.001
    bounds = points[:, 1].min() / margin, points[:, 1].max() * margin
    return Picture(
        f"Learning curve of {name}: the divergence per bin goes from {before:.3g} after "
        f"{first:,.0f} frames to {after:.3g} after {last:,.0f} frames.",
        x=_log_axis("Frames learned", (first, last)),
        y=_log_axis("Divergence per bin", bounds),
        path=_curve_path(
            np.log(points[:, 0]), np.log(points[:, 1]), np.log((first, last)), np.log(bounds)
        ),
    )


def colour_scale() -> Picture:
    """Draw the colours of every spectrogram."""
    ramp = np.linspace(-RANGE_DB, 0, 256)[None, :]
    marks = _ticks(np.linspace(-RANGE_DB, 0, 5), (-RANGE_DB, 0), lambda level: level, _plain)
    return Picture(
        f"Colours of the spectrograms, from black at −{RANGE_DB} dB to pale yellow at 0 dB.",
        x=Axis("Power (dB), 0 at the mixture’s peak", marks),
        y=Axis("", ()),
        uri=_image(ramp),
    )


def _average_cells(values: Array, edges: Array) -> Array:
    """Mean of the rows between fractional edges; row i spans i to i + 1."""
    total = np.zeros((len(values) + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, dtype=np.float64, out=total[1:])
    inside = np.clip(edges, 0, len(values))
    below = np.minimum(inside.astype(int), len(values) - 1)
    share = (inside - below)[:, None]
    averages: Array = np.diff(total[below] * (1 - share) + total[below + 1] * share, axis=0)
    return averages / np.diff(edges)[:, None]


def _decibels(powers: Array, reference: float) -> Array:
    reference = reference if reference > 0 else 1.0
    levels: Array = 10 * np.log10(np.maximum(powers / reference, 10 ** (-RANGE_DB / 10)))
    return levels


def _image(levels: Array) -> str:
    """Colour an array of dB, the first row at the bottom, as a WebP data URI."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(
        file,
        levels,
        vmin=-RANGE_DB,
        vmax=0,
        cmap=COLOURS,
        origin="lower",
        format="webp",
        pil_kwargs={"quality": 80, "method": 4},
    )
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _curve_path(x: Array, y: Array, x_range: ArrayLike, y_range: ArrayLike) -> str:
    """Write the area under a curve as an SVG path whose sides and bottom lie out of view."""
    right = np.interp(x, np.asarray(x_range), (0, CURVE_WIDTH))
    down = np.interp(y, np.asarray(y_range), (CURVE_HEIGHT, 0))
    points = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(right, down, strict=True))
    outside, below = CURVE_WIDTH + 20, CURVE_HEIGHT + 20
    return f"M-20,{below} V{down[0]:.1f} L{points} H{outside} V{below} Z"


def _describe_spectrogram(columns: Array, timeline: Timeline) -> str:
    if not columns.max() > 0:
        return "silence."
    hertz = np.linspace(0, timeline.sr / 2, columns.shape[1])
    low, high = np.interp([0.1, 0.9], _shares(columns.mean(axis=0)), hertz)
    loudest = (columns.sum(axis=1).argmax() + 0.5) * timeline.seconds / len(columns)
    return (
        f"four fifths of the power lie from {_in_hertz(low)} to {_in_hertz(high)}, "
        f"loudest at {loudest:.1f} s."
    )


def _shares(bins: Array) -> Array:
    """Share of the power up to each bin, strictly rising so that it can be inverted."""
    rising = np.cumsum(bins + 1e-12 * max(float(bins.max()), 1e-250), dtype=np.float64)
    shares: Array = rising / rising[-1]
    return shares


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def _hertz(mel: Array) -> Array:
    hertz: Array = 700 * (10 ** (mel / 2595) - 1)
    return hertz


def _frequency_axis(highest: float) -> Axis:
    octaves = [500 * 2**i for i in range(10)]
    return Axis(
        "Frequency (kHz)",
        _ticks(octaves, (0, highest), _mel, lambda hertz: _plain(hertz / 1000)),
    )


def _decibel_axis(label: str) -> Axis:
    return Axis(
        label, _ticks((-60, -40, -20, 0), (-CURVE_RANGE_DB, 0), lambda level: level, _plain)
    )


def _log_axis(label: str, bounds: tuple[float, float]) -> Axis:
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

    low, high = bounds
    decades = math.log10(high / low)
    if decades > 1:
        values = LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)).tick_values(low, high)
    else:
        values = MaxNLocator(4).tick_values(low, high)
    write = EngFormatter(sep="") if low >= 1 and decades > 1 else _plain
    return Axis(label, _ticks(values, bounds, math.log, write))


def _ticks(
    values: ArrayLike,
    bounds: tuple[float, float],
    scale: Callable[[float], float],
    write: Callable[[float], str],
) -> tuple[tuple[float, str], ...]:
    low, high = bounds
    start, length = scale(low), scale(high) - scale(low)
    return tuple(
        (round(100 * (scale(value) - start) / length, 2), write(value))
        for value in np.asarray(values, dtype=float).tolist()
        if low <= value <= high
    )


def _plain(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _in_hertz(hertz: float) -> str:
    return f"{hertz:.0f} Hz" if hertz < 1000 else f"{hertz / 1000:.1f} kHz"

"""Pictures of spectrograms, spectra and levels.

A picture contains no text: the page writes the axes, so that they stay legible on a phone and
follow its light or dark colours.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ondes.report.content import clock
from ondes.report.tracks import hertz_of, mel_of

__all__ = [
    "Axis",
    "Picture",
    "colour_scale",
    "level",
    "spectrogram",
    "spectrum",
]

Array = NDArray[np.floating]

COLOURS = "magma"
RANGE_DB = 80
CURVE_RANGE_DB = 60
ACTIVE_DB = 30
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


def spectrogram(name: str, cells: Array, seconds: float, sr: int, reference: float) -> Picture:
    """Draw powers of shape (n_columns, n_rows), as of `Track`, in dB below `reference`."""
    return Picture(
        f"Spectrogram of {name}, 0 to {clock(seconds)}: "
        + _describe_spectrogram(cells, seconds, sr),
        x=_time_axis(seconds),
        y=_frequency_axis(sr / 2),
        uri=_image(_decibels(cells.T, reference)),
    )


def spectrum(name: str, bins: Array, sr: int) -> Picture:
    """Draw the power of each bin, shape (n_bins,), in dB below its peak."""
    mels = np.linspace(0, mel_of(sr / 2), CURVE_POINTS)
    hertz = np.linspace(0, sr / 2, len(bins))
    levels = np.interp(hertz_of(mels), hertz, _decibels(bins, float(bins.max())))
    low, middle, high = np.interp([0.1, 0.5, 0.9], _shares(bins), hertz)
    return Picture(
        f"Spectrum of {name}: strongest at {_in_hertz(hertz[bins.argmax()])}, half of its power "
        f"below {_in_hertz(middle)}, four fifths from {_in_hertz(low)} to {_in_hertz(high)}.",
        x=_frequency_axis(sr / 2),
        y=_decibel_axis("Power (dB)"),
        path=_curve_path(mels, levels, (0, mels[-1]), (-CURVE_RANGE_DB, 0)),
    )


def level(name: str, powers: Array, seconds: float, reference: float) -> Picture:
    """Draw powers over equal spans of time, shape (n_columns,), in dB below `reference`."""
    levels = _decibels(powers, reference)
    times = (np.arange(len(levels)) + 0.5) * seconds / len(levels)
    active = np.mean(powers > powers.max() * 10 ** (-ACTIVE_DB / 10))
    return Picture(
        f"Level of {name}: loudest at {times[powers.argmax()]:.1f} s, "
        f"within {ACTIVE_DB} dB of that for {active:.0%} of the time.",
        x=_time_axis(seconds),
        y=_decibel_axis("Level (dB)"),
        path=_curve_path(times, levels, (0, seconds), (-CURVE_RANGE_DB, 0)),
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


def _describe_spectrogram(cells: Array, seconds: float, sr: int) -> str:
    if not cells.max(initial=0) > 0:
        return "silence."
    edges = hertz_of(np.linspace(0, mel_of(sr / 2), cells.shape[1] + 1))
    shares = _shares(cells.mean(axis=0) * np.diff(edges))
    low, high = np.interp([0.1, 0.9], shares, edges[1:])
    loudest = (cells.sum(axis=1).argmax() + 0.5) * seconds / len(cells)
    return (
        f"four fifths of the power lie from {_in_hertz(low)} to {_in_hertz(high)}, "
        f"loudest at {loudest:.1f} s."
    )


def _time_axis(seconds: float) -> Axis:
    from matplotlib.ticker import MaxNLocator

    in_seconds = seconds <= 90
    unit = 1 if in_seconds else 60
    steps = [1, 2, 2.5, 5, 10] if in_seconds else [1, 2, 5, 10]
    values = unit * np.asarray(MaxNLocator(6, steps=steps).tick_values(0, seconds / unit))
    return Axis(
        "Time (s)" if in_seconds else "Time (min:s)",
        _ticks(values, (0, seconds), lambda x: x, _plain if in_seconds else clock),
    )


def _shares(bins: Array) -> Array:
    """Share of the power up to each bin, strictly rising so that it can be inverted."""
    rising = np.cumsum(bins + 1e-12 * max(float(bins.max()), 1e-250), dtype=np.float64)
    shares: Array = rising / rising[-1]
    return shares


def _frequency_axis(highest: float) -> Axis:
    octaves = [500 * 2**i for i in range(10)]
    return Axis(
        "Frequency (kHz)",
        _ticks(octaves, (0, highest), mel_of, lambda hertz: _plain(hertz / 1000)),
    )


def _decibel_axis(label: str) -> Axis:
    return Axis(
        label, _ticks((-60, -40, -20, 0), (-CURVE_RANGE_DB, 0), lambda level: level, _plain)
    )


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

"""How many bytes each sound may have, so that the page opens on a phone and can be mailed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget", "budget_for"]

PAGE_BYTES = 7_500_000
BASE64 = 4 / 3
PICTURE_BYTES, COMPONENT_PICTURES_BYTES, PAGE_ITSELF_BYTES = 60_000, 6_000, 40_000
STEMS_SHARE = 0.8  # of the bytes left for sounds
STEM_BIT_RATES = (12_000, 48_000)  # per channel, least and most
COMPONENT_BIT_RATE = 24_000  # they are mono
LEAST_SECONDS = 3.0  # of a component that plays at all
MOST_SECONDS = 320.0  # of all components together, which take as long to encode as to separate


@dataclass(frozen=True)
class Budget:
    """Bit rates and lengths of the sounds of a page.

    Attributes
    ----------
    stem_bit_rate : int
        Per second and channel.
    component_bit_rate : int
        Per second.
    component_seconds : float
        How much of a component plays.
    n_players : int
        How many components, the loudest ones, have a sound.
    """

    stem_bit_rate: int
    component_bit_rate: int
    component_seconds: float
    n_players: int


def budget_for(seconds: float, n_channels: int, n_stems: int, n_components: int) -> Budget:
    """The budget of an excerpt; where it is long, bit rates fall first.

    Examples
    --------
    >>> budget_for(30, 2, 5, 32)
    Budget(stem_bit_rate=48000, component_bit_rate=24000, component_seconds=10.0, n_players=32)
    >>> budget_for(180, 2, 5, 32).component_seconds > 3
    True
    """
    n_channels = n_channels if n_channels <= 2 else 1
    pictures = PICTURE_BYTES * n_stems + COMPONENT_PICTURES_BYTES * n_components
    n_bytes = (PAGE_BYTES - PAGE_ITSELF_BYTES - pictures) / BASE64
    least, most = STEM_BIT_RATES
    share = STEMS_SHARE if n_components else 1.0
    rate = 8 * share * n_bytes / (seconds * n_stems * n_channels)
    stem_rate = round(min(most, max(least, rate)))
    left = max(0.0, n_bytes - stem_rate * seconds * n_stems * n_channels / 8)
    seconds_left = min(MOST_SECONDS, 8 * left / COMPONENT_BIT_RATE)
    n_players = min(n_components, int(seconds_left / min(LEAST_SECONDS, seconds)))
    each = min(seconds, seconds_left / n_players) if n_players else 0.0
    return Budget(stem_rate, COMPONENT_BIT_RATE, each, n_players)

"""Players in the gallery: a dictionary `players`, name -> (samples, sr), is shown as such.

In a script that is downloaded it is only that: a dictionary of sounds.
"""

from __future__ import annotations

import base64
import html
from io import BytesIO
from typing import Any

import numpy as np
import soundfile

LOUDEST = 0.9


def _get_sg_image_scraper() -> Any:
    return scrape_players


def scrape_players(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The players that a block has made, as raw HTML with the sound inlined."""
    sounds = block_vars["example_globals"].pop("players", None)
    if not sounds:
        return ""
    loudest = max(np.abs(samples).max() for samples, _ in sounds.values())
    gain = LOUDEST / max(loudest, 1e-9)  # one gain for all: they are compared
    rows = "".join(
        f"   <div><span>{html.escape(name)}</span>"
        f'<audio controls preload="none" src="{_inlined(gain * samples, sr)}" '
        f'aria-label="{html.escape(name)}"></audio></div>\n'
        for name, (samples, sr) in sounds.items()
    )
    return f'\n.. raw:: html\n\n   <div class="players">\n{rows}   </div>\n\n'


def _inlined(samples: np.ndarray, sr: int) -> str:
    file = BytesIO()
    soundfile.write(file, samples, sr, format="OGG", subtype="VORBIS")
    return f"data:audio/ogg;base64,{base64.b64encode(file.getvalue()).decode()}"

"""Players of the first page: a song, its bass and the rest, made when the site is built.

The song is a real one where ONDES_RECORDINGS (build/recordings) has it; else one of our own.
"""

from __future__ import annotations

import html
import os
from pathlib import Path

import numpy as np
import soundfile

import ondes
from ondes.demo_scene import make_scene

__all__ = ["write_first_sounds"]

SONG = Path("music", "wesnoth", "transience.ogg")
START, SECONDS = 8, 16
BASS_HZ = 220  # a component belongs to the bass if it is loudest below
REAL = "16 seconds of <i>transience</i>, from The Battle for Wesnoth (GPL-2+)"
OWN = "A tune that ondes synthesises"


def write_first_sounds(folder: Path) -> None:
    """Write sounds into `folder`/static/first, and their players into `folder`/first.html."""
    path = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings")) / SONG
    about = REAL if path.is_file() else OWN
    samples, sr = _song(path)
    dictionary = ondes.learn(
        samples, 24, sr=22050, n_fft=1764, spectrum="power", sparsity=0, n_passes=20
    )
    hertz = np.linspace(0, 11025, dictionary.components.shape[1])
    bass = np.flatnonzero(hertz[dictionary.components.argmax(axis=1)] < BASS_HZ)
    sources = ondes.Sources.from_components(dictionary, {"bass": bass.tolist()})
    stems = ondes.separate(samples, sources, sr=sr)
    sounds = {"the song": samples, "its bass": stems["bass"], "the rest": stems["rest"]}
    gain = 0.9 / max(np.abs(each).max() for each in sounds.values())
    target = folder / "static" / "first"
    target.mkdir(parents=True, exist_ok=True)
    rows = ""
    for number, (name, sound) in enumerate(sounds.items()):
        soundfile.write(target / f"{number}.ogg", gain * sound, sr)
        rows += (
            f"<div><span>{html.escape(name)}</span><audio controls preload='none' "
            f"src='_static/first/{number}.ogg' aria-label='{html.escape(name)}'></audio></div>\n"
        )
    note = f"{about}: 24 components were learned from nothing but the song; those that are "
    note += f"loudest below {BASS_HZ} Hz are its bass. Bass and rest sum to the song."
    page = f'<div><div class="players">\n{rows}</div>\n<p class="note">{note}</p></div>\n'
    (folder / "first.html").write_text(page, encoding="utf-8")


def _song(path: Path) -> tuple[np.ndarray, int]:
    if not path.is_file():
        scene = make_scene(seconds=SECONDS)
        return scene.mixture, scene.sr
    samples, sr = ondes.read(path)
    return samples[START * sr : (START + SECONDS) * sr], sr

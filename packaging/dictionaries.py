"""A small shelf of dictionaries, learned from freely licensed recordings by their package name.

    make dictionaries                       downloads Debian's packages, 500 MB, if need be
    make dictionaries RECORDINGS=folder     uses those that `make audio` has put there

Each dictionary gets a text beside it: where its sound comes from, by which licence, and with which
command it was learned. Nothing of it is part of the package: recordings are others' work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import ondes
from ondes.demo_scene import make_scene
from ondes.signal.audio_writer import write_audio

SHELF = Path(__file__).parents[1] / "build" / "dictionaries"


@dataclass(frozen=True)
class Entry:
    """A dictionary of the shelf: the files to learn from, and what is to be known of them."""

    name: str
    title: str
    package: str
    files: str
    licence: str
    settings: dict[str, int] = field(default_factory=dict)


ENTRIES = (
    Entry(
        "speech",
        "Speech of one man, Russian, 99 minutes at 16 kHz",
        "festvox-ru",
        "usr/share/festival/voices/russian/msu_ru_nsh_clunits/wav/*.wav",
        "BSD-like; see /usr/share/doc/festvox-ru/copyright. The dictionary may be used and shared "
        "with that notice.",
    ),
    Entry(
        "speech-en",
        "Telephone prompts of one woman, English, 25 minutes at 8 kHz",
        "asterisk-core-sounds-en-wav",
        "usr/share/asterisk/sounds/en_US_f_Allison/**/*.wav",
        "CC-BY-SA-3.0; name the package, and share what you derive under the same licence.",
        {"sr": 8000, "n_fft": 2048, "n_components": 64},
    ),
    Entry(
        "orchestra",
        "Orchestral and folk music, 127 minutes, Vorbis",
        "wesnoth-1.16-music",
        "usr/share/games/wesnoth/1.16/data/core/music/*.ogg",
        "GPL-2+; see its copyright file. Whether spectra are a derived work is not settled: keep "
        "the dictionary to yourself, or share it under the licence of the music.",
    ),
)
MADE = ("drums", "harmonic")
N_TUNES = 20


def main() -> int:
    """Learn what is missing on the shelf."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, default=Path("audio"))
    parser.add_argument("--passes", type=int, default=1)
    chosen = parser.parse_args()
    SHELF.mkdir(parents=True, exist_ok=True)
    for entry in ENTRIES:
        files = find_or_fetch(entry, chosen.recordings)
        if files:
            learn(entry, files, chosen.passes)
        else:
            print(f"{entry.name}: {entry.package} cannot be had here, so it is left out.")
    learn_made()
    return 0


def find_or_fetch(entry: Entry, folder: Path) -> list[str]:
    """The recordings of an entry; Debian's package is downloaded and unpacked, not installed."""
    if not (files := sorted(map(str, folder.glob(entry.files)))):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as name:
            try:
                subprocess.run(["apt-get", "download", entry.package], cwd=name, check=True)
                (package,) = Path(name).glob("*.deb")
                subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
            except (OSError, subprocess.CalledProcessError):
                return []
        files = sorted(map(str, folder.glob(entry.files)))
    return [file for file in files if not file.endswith("silence.ogg")]


def learn(entry: Entry, files: list[str], n_passes: int) -> None:
    """Write the dictionary of an entry and its text, if it is not on the shelf."""
    path = SHELF / f"{entry.name}.ondes"
    if path.exists():
        return
    dictionary = ondes.learn(
        files, n_passes=n_passes, n_jobs=-1, **entry.settings,
        on_error=lambda _, error: print(error, file=sys.stderr),
    )  # fmt: skip
    dictionary.save(path)
    about = f"{entry.title}.\nDebian package {entry.package}, {len(files)} recordings.\n"
    write_text(path, f"{about}Licence: {entry.licence}\n", dictionary)


def learn_made() -> None:
    """Drums against what has a pitch, from what `ondes.demo_scene` makes: free of any claim."""
    for name in MADE:
        path = SHELF / f"{name}.ondes"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(N_TUNES):
                scene = make_scene(30, random_state=seed)
                parts = {"drums": scene.stems["drums"]}
                parts["harmonic"] = scene.stems["strings"] + scene.stems["bass"]
                write_audio(Path(folder, f"{seed}.wav"), [parts[name]], scene.sr)
            dictionary = ondes.learn(folder, 48, sr=22050, n_fft=2048, n_jobs=-1)
        dictionary.save(path)
        about = f"Ten minutes made by ondes.demo_scene.make_scene, seeds 0 to {N_TUNES - 1}.\n"
        write_text(path, f"{about}Licence: BSD 3-Clause, as ondes itself.\n", dictionary)


def write_text(path: Path, about: str, dictionary: ondes.Dictionary) -> None:
    """What is to be known of a dictionary, beside it."""
    audio = dictionary.audio
    settings = (
        f"{dictionary.n_components} spectra, {audio.sr} Hz, frames of {audio.stft.n_fft} samples, "
        f"{audio.spectrum}; learned by ondes {ondes.__version__}.\n"
    )
    path.with_suffix(".txt").write_text(about + settings)
    print(f"{path.name}: {path.stat().st_size >> 10} KiB. {about.splitlines()[0]}")


if __name__ == "__main__":
    sys.exit(main())

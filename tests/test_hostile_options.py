"""Whatever number is given to an option, it is used, or refused in one sentence."""

from __future__ import annotations

import click
import pytest
from hostile import SMALL, everything_under, noise, run, tones, write_sound

from ondes.cli import ondes

BOTH = ["-d", "tones.ondes", "-d", "noise.ondes"]
COMMANDS = {
    "learn": ["tones.wav", *SMALL, "-o", "out"],
    "separate": ["mix.wav", *BOTH, "-o", "out"],
    "denoise": ["mix.wav", "--noise", "0-1", "-o", "out.wav"],
    "levels": ["mix.wav", *BOTH, "-o", "out.csv"],
    "report": ["mix.wav", *BOTH, "-o", "out.html"],
    "score": ["mix.wav", *BOTH],
}
WHOLE = (2**63, 2**64, 10**20)
REAL = ("nan", "inf", "-inf", "1e308")
OTHER = ("nan", "inf", "9" * 30, "9" * 308, "9" * 400)  # times, decibels, divergences
ENDLESS = ("--cluster", "--workers")  # which wait for others


def options_with_numbers():
    for command in COMMANDS:
        for option in ondes.commands[command].params:
            name = option.opts[-1]
            if not isinstance(option, click.Option) or option.is_flag or name in ENDLESS:
                continue
            if isinstance(option.type, click.types.IntParamType):
                yield command, name, WHOLE
            elif isinstance(option.type, click.types.FloatParamType):
                yield command, name, REAL
            elif name in ("--start", "--end", "--beta-loss", "--top-db", "--noise"):
                yield command, name, OTHER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    for name, samples in {"tones": tones(1), "noise": noise(1), "mix": tones(2)}.items():
        write_sound(folder / f"{name}.wav", samples)
    for name in ("tones", "noise"):
        done = run("learn", f"{name}.wav", "-o", f"{name}.ondes", *SMALL, cwd=folder)
        assert done.returncode == 0
    return folder


@pytest.mark.parametrize(
    ("command", "option", "values"), list(options_with_numbers()), ids=lambda each: str(each)[:20]
)
def test_no_number_of_an_option_is_a_bug(folder, command, option, values):
    before = everything_under(folder)
    for value in values:
        done = run(command, *COMMANDS[command], f"{option}={value}", cwd=folder)
        if done.returncode == 0:  # as much as that is what there is
            for name in sorted({*everything_under(folder)} - {*before}, reverse=True):
                path = folder / name
                path.rmdir() if path.is_dir() else path.unlink()
            continue
        said = done.stderr.decode()
        assert done.returncode in (1, 2), said
        assert "(a bug" not in said
        assert "Traceback" not in said
        assert "checkpoint: " not in said
        assert everything_under(folder) == before

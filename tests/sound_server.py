"""A sound server without hardware, for the tests and the measurements of live sound.

One null sink, whose left channel is the microphone and whose right one is the loudspeaker: what its
monitor records has both on one clock.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

RATE = 48000
PATIENCE_S = 20.0
SETTINGS = ["--daemonize=no", "--use-pid-file=no", "--disable-shm=yes"]
SIDES = {"microphone": "front-left", "loudspeaker": "front-right"}
MODULES = [
    f"module-null-sink sink_name=both rate={RATE} channels=2",
    *(
        f"module-remap-sink sink_name={name} master=both channels=1 "
        f"master_channel_map={side} channel_map=mono remix=no"
        for name, side in SIDES.items()
    ),
    f"module-remap-source source_name=voice master=both.monitor channels=1 "
    f"master_channel_map={SIDES['microphone']} channel_map=mono remix=no",
]


def missing():
    """What is not here of all that live sound needs."""
    programs = [
        each for each in ("pulseaudio", "pactl", "parec", "pacat") if not shutil.which(each)
    ]
    libraries = [each for each in ("portaudio", "asound") if ctypes.util.find_library(each) is None]
    packages = [] if importlib.util.find_spec("sounddevice") else ["sounddevice"]
    return [*programs, *libraries, *packages]


class SoundServer:
    """PulseAudio in user space, in a folder of its own."""

    def __init__(self, folder):
        socket = Path(folder, "socket")
        self.environment = {"PULSE_SERVER": f"unix:{socket}"}
        lines = [*MODULES, f"module-native-protocol-unix auth-anonymous=1 socket={socket}"]
        Path(folder, "default.pa").write_text("".join(f"load-module {each}\n" for each in lines))
        own = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PULSE_")} | own
        self._process = subprocess.Popen(
            ["pulseaudio", "-n", "-F", f"{folder}/default.pa", "--exit-idle-time=-1", *SETTINGS],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + PATIENCE_S
        while "voice" not in self.control("list", "short", "sources"):
            assert time.monotonic() < until, "the sound server did not start"
            time.sleep(0.05)

    def close(self):
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def stop(self):
        """Let it hang: it answers nothing until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """Let it answer again."""
        self._process.send_signal(signal.SIGCONT)

    def control(self, *arguments):
        """What pactl prints."""
        done = subprocess.run(
            ["pactl", *arguments], env=os.environ | self.environment, capture_output=True, text=True
        )
        return done.stdout

    def is_used(self, kind="source-outputs"):
        """Whether a program has opened a microphone, or with "sink-inputs" a loudspeaker."""
        return "ALSA" in self.control("list", kind)

    def play(self, samples, device="microphone"):
        """Play samples to the end."""
        raw = ["--raw", "--format=float32le", f"--rate={RATE}", "--channels=1", "--latency-msec=50"]
        subprocess.run(
            ["pacat", *raw, "-d", device],
            input=np.asarray(samples, "<f4").tobytes(),
            env=os.environ | self.environment,
            check=True,
            timeout=60,
        )

    @contextlib.contextmanager
    def recorded(self, file, device="both.monitor", channels=2):
        """Record a device meanwhile; the list gets it as an array of shape (n, channels)."""
        raw = ["--raw", "--format=float32le", f"--rate={RATE}", f"--channels={channels}"]
        raw += ["--latency-msec=20", "-d", device]
        found = []
        with Path(file).open("wb") as out:
            process = subprocess.Popen(
                ["parec", *raw],
                stdout=out,
                env=os.environ | self.environment,
            )
            try:
                while not Path(file).stat().st_size:
                    time.sleep(0.02)
                yield found
                time.sleep(0.5)
            finally:
                process.terminate()
                process.wait(PATIENCE_S)
        samples = np.fromfile(file, "<f4")
        found.append(samples[: len(samples) // channels * channels].reshape(-1, channels))


def clicks(seconds, seed=0):
    """Short bursts of noise at irregular times, whose correlation with themselves is narrow."""
    rng = np.random.default_rng(seed)
    samples = np.zeros(int(seconds * RATE))
    places = np.cumsum(rng.integers(8000, 16000, int(seconds * 8)))
    for place in places[places < len(samples) - 100]:
        samples[place : place + 20] = 0.3 * rng.standard_normal(20)
    return samples


def lateness(before, after, longest=RATE):
    """By how many samples the second is late, and how well the two correlate then."""
    size = 1 << (2 * len(before)).bit_length()
    spectra = np.conj(np.fft.rfft(before, size)) * np.fft.rfft(after, size)
    correlation = np.fft.irfft(spectra, size)[:longest]
    place = int(correlation.argmax())
    return place, correlation[place] / np.sqrt((before**2).sum() * (after**2).sum() + 1e-12)

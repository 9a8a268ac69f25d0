"""Microphones and loudspeakers by name, those of PortAudio and of a sound server.

On Linux a sound server (PipeWire, PulseAudio) has all devices, and PortAudio sees it as one of its
own, "pulse". The server's devices are chosen by environment variables that its library reads.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ondes.errors import DeviceError

__all__ = ["SoundDevice", "abandon", "devices", "find_device", "in_time", "portaudio"]

SERVER = "pulse"  # PortAudio's name of the sound server
VARIABLES = {"input": "PULSE_SOURCE", "output": "PULSE_SINK"}
LISTS = {"input": "sources", "output": "sinks"}
PATIENCE_S = 5.0


@dataclass(frozen=True)
class SoundDevice:
    """A device that sound comes from or goes to.

    Attributes
    ----------
    kind : {"input", "output"}
    name : str
        What it is chosen by.
    description : str
    number : int
        PortAudio's.
    is_of_server : bool
        Whether PortAudio reaches it through a sound server.
    """

    kind: str
    name: str
    description: str
    number: int
    is_of_server: bool = False

    def choose(self) -> int:
        """Let the sound server take this device; the number of PortAudio's."""
        if self.is_of_server:
            os.environ[VARIABLES[self.kind]] = self.name
        return self.number


def portaudio() -> Any:
    """The module sounddevice; DeviceError where it or PortAudio is missing."""
    standard_error = os.dup(2)
    try:
        sounddevice = in_time(lambda: importlib.import_module("sounddevice"))
    except DeviceError:
        os.dup2(standard_error, 2)  # which sounddevice leads nowhere while PortAudio begins
        raise
    except ImportError:
        raise DeviceError(
            "Live sound needs the package sounddevice: pip install 'ondes[live]'."
        ) from None
    except OSError:
        raise DeviceError(
            "Live sound needs the library PortAudio; install it, on Debian and Ubuntu as "
            "libportaudio2."
        ) from None
    finally:
        os.close(standard_error)
    _silence_alsa()
    return sounddevice


def in_time(call: Callable[[], Any]) -> Any:
    """What a call of PortAudio returns; DeviceError where it has not returned after some seconds.

    Where a sound server hangs, such a call never returns, and Python answers no signal meanwhile.

    Examples
    --------
    >>> in_time(lambda: 2 + 2)
    4
    """
    if sys.platform != "linux":  # elsewhere a stream may belong to the thread that opened it
        return call()
    found: list[Any] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            found.append(call())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if failures:
        raise failures[0]
    if not found:
        raise DeviceError("The sound server does not answer: start it again.")
    return found[0]


def abandon() -> None:
    """Do not wait for PortAudio's streams at the end of the process either."""
    atexit.unregister(portaudio()._exit_handler)


@cache
def _silence_alsa() -> None:
    """Let ALSA's library, which PortAudio uses on Linux, write nothing to standard error."""
    try:
        library = ctypes.CDLL("libasound.so.2")
    except OSError:
        return
    library.snd_lib_error_set_handler(_NOTHING)


# Its further arguments, whose number varies, are left where they are.
_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int)(
    lambda *_: None
)


def devices(kind: str) -> list[SoundDevice]:
    """All devices of a kind, "input" or "output"; first those of the sound server."""
    found, server = [], None
    for number, each in enumerate(portaudio().query_devices()):
        if each[f"max_{kind}_channels"] > 0:
            found.append(SoundDevice(kind, each["name"], each["name"], number))
            if each["name"] == SERVER:
                server = number
    if server is None:
        return found
    return [SoundDevice(kind, *each, server, True) for each in _of_server(kind)] + found


def find_device(kind: str, name: str | None) -> SoundDevice:
    """The device of that name, or the only one of which the name contains it, or the default.

    Parameters
    ----------
    kind : {"input", "output"}
    name : str or None

    Raises
    ------
    DeviceError
        Where there is none, or several.
    """
    every = devices(kind)
    if not every:
        raise DeviceError(f"There is no {kind} device; see ondes live --list-devices.")
    if name is None:
        default = portaudio().default.device[kind == "output"]
        usual = [each for each in every if each.number == default and not each.is_of_server]
        return (usual or every)[0]
    same = [each for each in every if name in (each.name, each.description, str(each.number))]
    word = name.lower()
    like = [each for each in every if word in f"{each.name}\n{each.description}".lower()]
    if same or len(like) == 1:
        return (same or like)[0]
    which = "several" if like else "none"
    names = ", ".join(repr(each.name) for each in like or every)
    raise DeviceError(f"Of the {kind} devices, {which} match {name!r}: choose one of {names}.")


def _of_server(kind: str) -> list[tuple[str, str]]:
    """Names and descriptions of a sound server's devices."""
    if shutil.which("pactl") is None:
        return []
    try:
        done = subprocess.run(
            ["pactl", "list", LISTS[kind]],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = re.findall(r"^\tName: (.*)$", done.stdout, re.MULTILINE)
    descriptions = re.findall(r"^\tDescription: (.*)$", done.stdout, re.MULTILINE)
    return list(zip(names, descriptions, strict=False))

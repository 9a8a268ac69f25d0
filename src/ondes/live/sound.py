"""The streams of a microphone and a loudspeaker, and what waits between them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ondes.errors import DeviceError, OndesError
from ondes.live.sound_devices import SoundDevice, abandon, in_time, portaudio
from ondes.signal.audio_writer import deferred_signals

__all__ = ["LiveSound", "WaitingSound"]

Samples = NDArray[np.float32]

SILENT_S = 2.0  # without a block from a device, it has gone
SETTLED_S = 5.0  # in which more has waited than is needed
MOST_WAITING_S = 0.1
SWITCH_S = 1e-3  # between threads: drawing levels must not hold up sound


class WaitingSound:
    """Samples that wait for a loudspeaker, no more of them than its jitter asks for.

    Where nothing waits, silence is given. Blocks that come late make that the next ones wait
    longer, which prevents further gaps; where two blocks and more have waited for some seconds, one
    is left out.

    Parameters
    ----------
    n_channels, block_size, sr : int

    Attributes
    ----------
    n_missing : int
        Samples of silence in gaps, since the first block.
    n_left_out : int

    Examples
    --------
    >>> waiting = WaitingSound(1, 4, 8000)
    >>> waiting.put(np.ones((6, 1), np.float32))
    >>> waiting.take(4).sum().item(), waiting.take(4).sum().item(), waiting.n_missing
    (4.0, 2.0, 2)
    """

    def __init__(self, n_channels: int, block_size: int, sr: int) -> None:
        self._blocks: deque[Samples] = deque()
        self._lock = threading.Lock()
        self._n_channels, self._block_size = n_channels, block_size
        self._n_settled, self._most = round(SETTLED_S * sr), round(MOST_WAITING_S * sr)
        self._most = max(self._most, 4 * block_size)
        self.n_waiting = self.n_missing = self.n_left_out = 0
        self._has_begun = False
        self._least, self._n_watched = sys.maxsize, 0  # since some moment

    def put(self, samples: Samples) -> None:
        """Append samples, (n, n_channels)."""
        with self._lock:
            self._has_begun = self._has_begun or len(samples) > 0
            self._blocks.append(samples)
            self.n_waiting += len(samples)
            if self.n_waiting > self._most:
                self._leave_out(self.n_waiting - self._block_size)

    def take(self, n: int) -> Samples:
        """The next `n` samples, with silence where none wait."""
        taken = np.zeros((n, self._n_channels), np.float32)
        with self._lock:
            n_given = self._move(taken)
            if self._has_begun:
                self.n_missing += n - n_given
            self._least, self._n_watched = min(self._least, self.n_waiting), self._n_watched + n
            if self._n_watched > self._n_settled:
                if self._least >= 2 * self._block_size:
                    self._leave_out(self._block_size)
                self._least, self._n_watched = sys.maxsize, 0
        return taken

    def _leave_out(self, n: int) -> None:
        self._move(np.empty((n, self._n_channels), np.float32))
        self.n_left_out += n

    def _move(self, out: Samples) -> int:
        """Move samples from the front into an array; how many there were."""
        n = 0
        while self._blocks and n < len(out):
            block = self._blocks.popleft()
            part = block[: len(out) - n]
            out[n : n + len(part)] = part
            n += len(part)
            if len(part) < len(block):
                self._blocks.appendleft(block[len(part) :])
        self.n_waiting -= n
        return n


class LiveSound:
    """Sound from a device through a function to another device; a context manager.

    Parameters
    ----------
    process : callable
        From the next samples of the input, (n, n_channels), to samples for the output, as many in
        the long run.
    source, sink : SoundDevice
    sr, n_channels : int
    block_size : int
        Samples that devices give and take at a time; their buffers have two blocks.

    Attributes
    ----------
    device_seconds : float
        What PortAudio says of the delay of both devices.
    seconds : float
        Of sound that came in.
    processor_seconds, longest_seconds : float
        Of all calls of `process`, and of the longest one since `take_longest`.
    n_overflows : int
        How often the input lost samples, because `process` took too long.
    """

    def __init__(
        self,
        process: Callable[[Samples], Samples],
        source: SoundDevice,
        sink: SoundDevice,
        *,
        sr: int,
        n_channels: int,
        block_size: int,
    ) -> None:
        self._process, self.sr, self._n_channels = process, sr, n_channels
        self._source, self._sink, self._block_size = source, sink, block_size
        self.waiting = WaitingSound(n_channels, block_size, sr)
        self._n_in = self.n_overflows = 0
        self.processor_seconds = self.longest_seconds = self.device_seconds = 0.0
        self._failure: BaseException | None = None
        self._latest = {"input": 0.0, "output": 0.0}

    def __enter__(self) -> Self:
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        with ExitStack() as stack:
            stack.callback(sys.setswitchinterval, self._switch)
            opened = {}
            for device, kind, callback in (
                (self._sink, "OutputStream", self._give),
                (self._source, "InputStream", self._take),
            ):
                opened[device.kind] = self._opened(device, kind, callback)
                stack.callback(opened[device.kind].close, ignore_errors=True)
            self._latest = dict.fromkeys(self._latest, time.monotonic())
            for stream in opened.values():
                stream.start()
            self.device_seconds = sum(float(stream.latency) for stream in opened.values())
            self._finish = stack.pop_all().close
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with deferred_signals():
                in_time(self._finish)
        except DeviceError:
            abandon()
            if kind is None:
                raise

    @property
    def seconds(self) -> float:
        """Of sound that came in."""
        return self._n_in / self.sr

    def take_longest(self) -> float:
        """Seconds of the longest block since the last call."""
        longest, self.longest_seconds = self.longest_seconds, 0.0
        return longest

    def check(self) -> None:
        """Raise what went wrong in a stream, or DeviceError where a device has gone."""
        if self._failure is not None:
            raise self._failure
        for device in (self._source, self._sink):
            if time.monotonic() - self._latest[device.kind] > SILENT_S:
                raise DeviceError(
                    f"The {device.kind} device {device.description!r} has gone, or has stopped; "
                    f"there were {self.seconds:.1f} s of sound."
                )

    def _opened(self, device: SoundDevice, kind: str, callback: Callable[..., None]) -> Any:
        sounddevice = portaudio()
        try:
            return getattr(sounddevice, kind)(
                samplerate=self.sr,
                blocksize=self._block_size,
                device=device.choose(),
                channels=self._n_channels,
                dtype="float32",
                latency=2 * self._block_size / self.sr,
                callback=callback,
            )
        except sounddevice.PortAudioError as error:
            reason = str(error.args[0]).rstrip(".")
            raise DeviceError(
                f"The {device.kind} device {device.description!r} cannot be used with "
                f"{self._n_channels} channels at {self.sr} Hz ({reason}); choose another one, "
                "--channels or --sr."
            ) from error

    def _take(self, samples: Samples, _n: int, _time: Any, status: Any) -> None:
        """The next block of the input; called by PortAudio in a thread of its own."""
        begin = time.thread_time()
        self._latest["input"] = time.monotonic()
        self.n_overflows += bool(status.input_overflow)
        try:
            if self._failure is None:
                self.waiting.put(self._process(samples.copy()))
        except (OndesError, ValueError, OSError, MemoryError) as error:
            self._failure = error
        self._n_in += len(samples)
        elapsed = time.thread_time() - begin
        self.processor_seconds += elapsed
        self.longest_seconds = max(self.longest_seconds, elapsed)

    def _give(self, out: Samples, n: int, _time: Any, _status: Any) -> None:
        """The next block of the output; called by PortAudio in a thread of its own."""
        self._latest["output"] = time.monotonic()
        out[:] = self.waiting.take(n)

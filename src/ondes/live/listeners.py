"""Who else gets the sources of live sound: recordings, and a dictionary that learns from them.

Both work in threads of their own: sound does not wait for a disk, or for learning.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ondes.errors import FileError, OndesError
from ondes.signal.audio_writer import MAX_WAV_BYTES, AudioWriter, deferred_signals

__all__ = ["StemLearner", "StemRecorder"]

Samples = NDArray[np.float32]
Stems = Mapping[str, Samples]

MOST_WAITING = 3000  # blocks: half a minute
SAMPLE_BYTES = 4
LEAST_S = 1.0  # of sound, that something can be learned from
LEAST_FREE = 2**26  # bytes of a disk: a full one could not complete what is recorded


class _Listener:
    """A thread that is given blocks; what it cannot keep up with is left out, and counted.

    Signals wait until it has completed its work: a second Ctrl-C must not lose it.
    """

    def __init__(self) -> None:
        self._blocks: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self.n_left_out = 0  # samples
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with deferred_signals():
            while self._thread.is_alive():
                with contextlib.suppress(queue.Full):
                    self._blocks.put(None, timeout=0.1)
                    break
            self._thread.join()

    def __call__(self, stems: Stems) -> None:
        """Take the next samples."""
        n = len(next(iter(stems.values())))
        if not n:
            return
        try:
            self._blocks.put_nowait(self._part(stems))
        except queue.Full:
            self.n_left_out += n

    def check(self) -> None:
        """Raise what went wrong."""
        if self.failure is not None:
            raise self.failure

    def _part(self, stems: Stems) -> Any:
        return stems

    def _run(self) -> None:
        try:
            self._work()
        except (OndesError, ValueError, OSError, MemoryError) as error:
            self.failure = error

    def _work(self) -> None:
        raise NotImplementedError


class StemRecorder(_Listener):
    """Writes the input and every source to files; a context manager.

    The input is the sum of the sources, so that it lies beside them sample by sample. A WAV file is
    full after hours: then others begin, such as ``input-2.wav``. Where the disk is nearly full,
    recording ends with an error, and what was recorded is complete.

    Parameters
    ----------
    files : mapping of str to Path
        Of the sources, and of "input".
    sr, n_channels : int
    force : bool
    n_most : int, optional
        Samples in a file; by default what a WAV file holds.
    least_free : int
        Bytes that are left free on the disk.

    Attributes
    ----------
    files : dict of str to Path
        Of all parts; those of the second are called "input-2" and so on.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        sr: int,
        n_channels: int,
        force: bool = False,
        *,
        n_most: int | None = None,
        least_free: int = LEAST_FREE,
    ) -> None:
        super().__init__()
        self.files, self._first = dict(files), dict(files)
        self._facts, self._force = (sr, n_channels), force
        self._n_most = n_most or MAX_WAV_BYTES // (SAMPLE_BYTES * n_channels)
        self._least_free = least_free
        self._folder = next(iter(self._first.values())).parent
        self._is_full = False

    def _work(self) -> None:
        rest, part = self._write(self._first, None), 1
        while rest is not None:
            part += 1
            files = {
                name: file.with_stem(f"{file.stem}-{part}") for name, file in self._first.items()
            }
            self.files |= {f"{name}-{part}": file for name, file in files.items()}
            rest = self._write(files, rest)
        if self._is_full:
            raise FileError(
                self._folder,
                "is on a disk that is nearly full: recording has ended, and what was recorded is "
                "complete; make room, or record into another folder",
            )

    def _write(self, files: Mapping[str, Path], stems: Stems | None) -> Stems | None:
        """Write one part, from these samples on; return the first that it has no room for."""
        sr, n_channels = self._facts
        n_written = n_checked = 0
        with contextlib.ExitStack() as stack:
            writers = {
                name: stack.enter_context(AudioWriter(file, sr, n_channels, force=self._force))
                for name, file in files.items()
            }
            if stems is None:
                stems = self._blocks.get()
            while stems is not None:
                parts = list(stems.values())
                n = len(parts[0])
                if n_written and n_written + n > self._n_most:
                    return stems
                for name, writer in zip(files, writers.values(), strict=True):
                    writer.write(stems[name] if name in stems else sum(parts[1:], parts[0]))
                n_written += n
                if n_written >= n_checked:
                    n_checked = n_written + sr
                    if shutil.disk_usage(self._folder).free < self._least_free:
                        self._is_full = True
                        return None
                stems = self._blocks.get()
        return None


class StemLearner(_Listener):
    """Learns a dictionary online from the sum of some sources; a context manager.

    Parameters
    ----------
    names : sequence of str
        The sources to learn from.
    sr, n_channels : int
    half_life : float
        Seconds after which sound counts half.
    dictionary : Dictionary, optional
        Go on learning this one, which has settings of its own.
    delay : float
        As of `ondes.learn`.
    n_components : int

    Attributes
    ----------
    learned : Dictionary or None
        At the end; None where there was less than a second of sound.
    """

    def __init__(
        self,
        names: Sequence[str],
        sr: int,
        n_channels: int,
        *,
        half_life: float,
        dictionary: Any = None,
        delay: float,
        n_components: int = 16,
    ) -> None:
        super().__init__()
        self._names, self._facts = tuple(names), (sr, n_channels)
        self._half_life, self._dictionary = half_life, dictionary
        self._n_components, self._delay = n_components, delay
        self.learned: Any = None
        self._rest, self._n_bytes = b"", 0

    def read(self, n_bytes: int = -1) -> bytes:
        """Bytes of the stream that is learned from: what is there, and none at its end."""
        if not self._rest:
            block = self._blocks.get()
            if block is None:
                self._blocks.put(None)
                return b""
            self._rest = block
            self._n_bytes += len(block)
        data = self._rest if n_bytes < 0 else self._rest[:n_bytes]
        self._rest = self._rest[len(data) :]
        return data

    def _part(self, stems: Stems) -> bytes:
        first, *others = (stems[name] for name in self._names)
        samples: Samples = sum(others, first)
        return samples.astype("<f4").tobytes()

    def _work(self) -> None:
        try:
            self.learned = self._learn()
        except FileError:
            sr, n_channels = self._facts
            if self._n_bytes >= LEAST_S * sr * n_channels * SAMPLE_BYTES:
                raise

    def _learn(self) -> Any:
        from ondes.learning.dictionary_learning import learn
        from ondes.nmf.forgetting import HalfLife
        from ondes.signal.recordings import RawFormat
        from ondes.signal.stft import Stft

        raw = RawFormat(*self._facts, "f32le")
        stream: Any = self
        if self._dictionary is not None:
            return learn(stream, dictionary=self._dictionary, raw=raw, n_jobs=1)
        hop_s = Stft.with_delay(self._delay, 16000).hop_length / 16000
        return learn(
            stream,
            self._n_components,
            delay=self._delay,
            forgetting=HalfLife(self._half_life / hop_s),
            raw=raw,
            n_jobs=1,
        )

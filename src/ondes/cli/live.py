"""`ondes live`."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.cli.destinations import make_folder
from ondes.errors import printable

if TYPE_CHECKING:
    from ondes.live.listeners import StemLearner, StemRecorder
    from ondes.live.mix import LiveMix
    from ondes.live.sound import LiveSound
    from ondes.models.dictionary import Dictionary
    from ondes.models.model import Model

REDRAW_S = 0.1
STEP_DB, LEAST_DB, MOST_DB = 3.0, -60.0, 24.0
BAR_DB, BAR_WIDTH = 60.0, 30
SPEECH = "speech"
HALF_LIFE_S = 60.0
KEYS = "1-9 choose, + and - change its gain, m mutes it, q ends"


@click.command(short_help="Separate or denoise live sound, from a microphone to a loudspeaker.")
@options.dictionaries(required=False)
@click.option("--input", "source", metavar="DEVICE", help="The microphone.  [default: the usual]")
@click.option("--output", "sink", metavar="DEVICE", help="The loudspeaker.  [default: the usual]")
@click.option("--list-devices", is_flag=True, help="Print the names of all devices.")
@click.option(
    "--hear",
    multiple=True,
    metavar="NAME",
    help="A source to hear; may be repeated.  [default: speech where there is one, else all]",
)
@click.option(
    "--amount",
    type=click.FloatRange(0, min_open=True),
    metavar="DB",
    default=30.0,
    show_default=True,
    help="Reduce the other sources by this many decibels.",
)
@click.option(
    "--adapt",
    multiple=True,
    metavar="NAME",
    help="Adapt the dictionary of this source to what is heard; may be repeated.",
)
@click.option(
    "--learn",
    "learned",
    metavar="MODEL",
    callback=options.no_minus,
    help="Learn a dictionary of the other sources, and write it at the end; of a file that is "
    "there, go on learning.",
)
@click.option(
    "--half-life",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="With --learn of a new file, seconds after which sound counts half.  [default: 60]",
)
@click.option(
    "--record", metavar="FOLDER", help="Write the input and all sources as WAV into this folder."
)
@options.count("--channels", default=1, help="Channels of both devices.")
@options.count("--sr", help="Sampling rate of both devices.  [default: that of the microphone]")
@click.option(
    "--delay",
    metavar="TIME",
    default="30ms",
    show_default=True,
    callback=options.as_delay,
    help="Late by this at most; with less, separated less well, and with more load.",
)
@click.option(
    "--buffer",
    metavar="TIME",
    default="20ms",
    show_default=True,
    callback=options.as_delay,
    help="Buffers of both devices; 10ms is less late, and where the machine is busy has more gaps.",
)
@options.force
@options.as_json
def live(**given: Any) -> int:
    """Separate or denoise the sound of a microphone, and play it at once.

    Without -d, a separator that comes with ondes keeps speech and reduces everything else. Models
    of `ondes learn --delay 30ms` and the separators that come with ondes are late by 30 ms, to
    which the devices add theirs. Use headphones: the microphone must not hear the loudspeaker. In a
    terminal, levels are shown, and keys change gains. Ctrl-C or q ends; what was recorded and
    learned is then complete.

    \b
    ondes live
    ondes live --list-devices
    ondes live --input usb --output headphones --amount 18
    ondes live -d talk --hear speech --hear music --record evening/
    ondes live --learn room.ondes
    ondes live -d speech.ondes -d room.ondes --adapt room
    """  # noqa: D301
    from ondes.live.sound_devices import find_device

    if given["list_devices"]:
        return _list_devices(given["as_json"])
    model = _model(given)
    hear = _heard(model.names, given["hear"])
    others = [name for name in model.names if name not in hear]
    files = _files(model.names, given)
    if given["learned"] and not others:
        raise click.UsageError("--learn learns the sources that are not heard; choose with --hear.")
    dictionary = _dictionary_to_go_on(given)
    source, sink = find_device("input", given["source"]), find_device("output", given["sink"])
    session = _Session(model, hear, others, files, dictionary, source, sink, given)
    with terminal.warnings_shown_by():
        is_interrupted = session.run()
    if given["as_json"]:
        terminal.print_json(session.facts())
    else:
        session.say_what_was()
    return terminal.INTERRUPTED if is_interrupted else terminal.DONE


def _list_devices(as_json: bool) -> int:
    from ondes.live.sound_devices import devices

    found = {f"{kind}s": devices(kind) for kind in ("input", "output")}
    if as_json:
        terminal.print_json(
            {kind: [[each.name, each.description] for each in some] for kind, some in found.items()}
        )
        return terminal.DONE
    for kind, some in found.items():
        terminal.say(f"{kind}:" if some else f"{kind}: none")
        for each in some:
            more = "" if each.description == each.name else f"  ({printable(each.description)})"
            terminal.say(f"  {printable(each.name)}{more}")
    return terminal.DONE


def _model(given: dict[str, Any]) -> Model:
    """The model of -d, or the one that comes with ondes, for live sound."""
    from ondes.cli.models import as_model, load_models, with_delay
    from ondes.live.following import LiveAdaptingSources
    from ondes.models.loading import from_shelf
    from ondes.models.sources import Sources

    model: Model = from_shelf("denoise")
    if given["dictionaries"]:
        model = as_model(load_models(given["dictionaries"]))
    if len(model.names) == 1:
        raise click.UsageError("Live sound needs two sources or more: give another -d.")
    model = with_delay(model, given["delay"])
    for name in given["adapt"]:
        if name not in model.names:
            raise click.UsageError(
                f"--adapt {name!r} is not one of the sources: {', '.join(model.names)}."
            )
    if given["adapt"]:
        if not isinstance(model, Sources):
            raise click.UsageError("--adapt needs dictionaries, from ondes learn --delay 30ms.")
        model = LiveAdaptingSources(model, given["adapt"])
    return model


def _heard(names: Sequence[str], given: Sequence[str]) -> list[str]:
    for name in given:
        if name not in names:
            raise click.UsageError(
                f"--hear {name!r} is not one of the sources: {', '.join(names)}."
            )
    if given:
        return list(given)
    return [SPEECH] if SPEECH in names else list(names)


def _files(names: Sequence[str], given: dict[str, Any]) -> dict[str, Path]:
    """The files to write, checked before any work."""
    from ondes.atomic_file import check_destination
    from ondes.cli.separate import as_file_name

    files: dict[str, Path] = {}
    if given["record"] is not None:
        if "input" in names:
            raise click.UsageError("A source is called input, as is the recording of the mixture.")
        folder = Path(given["record"])
        files = {name: folder / f"{as_file_name(name)}.wav" for name in ("input", *names)}
        for file in filter(os.path.lexists, files.values()):
            check_destination(file, given["force"])
    if given["learned"] is not None:
        check_destination(given["learned"], force=True)
    return files


def _dictionary_to_go_on(given: dict[str, Any]) -> Dictionary | None:
    from ondes.cli.models import load_dictionary

    path, half_life = given["learned"], given["half_life"]
    if path is None and half_life is not None:
        raise click.UsageError("--half-life is of --learn MODEL; give that, or leave it out.")
    if path is None or not os.path.lexists(path):
        return None
    if half_life is not None:
        raise click.UsageError(
            f"{printable(path)} is there, and learning goes on with the half-life that it was "
            "begun with; leave out --half-life, or choose another file."
        )
    return load_dictionary(path)


class _Session:
    """One run: devices, a mix, who listens beside, and the terminal."""

    def __init__(
        self,
        model: Model,
        hear: Sequence[str],
        others: Sequence[str],
        files: dict[str, Path],
        dictionary: Dictionary | None,
        source: Any,
        sink: Any,
        given: dict[str, Any],
    ) -> None:
        from ondes.live.listeners import StemLearner, StemRecorder
        from ondes.live.mix import LiveMix
        from ondes.live.sound import LiveSound
        from ondes.live.sound_devices import portaudio
        from ondes.nmf.encoding import Compute
        from ondes.separation.separator import Separator

        self._given = given
        facts = portaudio().query_devices(source.number)
        self.sr = given["sr"] or round(facts["default_samplerate"])
        n_channels = given["channels"]
        self._listeners: list[StemRecorder | StemLearner] = []
        self._recorder: StemRecorder | None = None
        self._learner: StemLearner | None = None
        if files:
            self._recorder = StemRecorder(files, self.sr, n_channels, given["force"])
            self._listeners.append(self._recorder)
        if given["learned"] is not None:
            self._learner = StemLearner(
                others,
                self.sr,
                n_channels,
                half_life=given["half_life"] or HALF_LIFE_S,
                dictionary=dictionary,
                delay=given["delay"],
            )
            self._listeners.append(self._learner)
        separator = Separator(model, sr=self.sr, compute=Compute(n_jobs=1))
        self.delay = separator.delay / self.sr
        gains = {name: 0.0 if name in hear else -given["amount"] for name in model.names}
        self._mix: LiveMix = LiveMix(separator, gains, tuple(self._listeners))
        self._sound: LiveSound = LiveSound(
            self._mix.push,
            source,
            sink,
            sr=self.sr,
            n_channels=n_channels,
            block_size=max(1, round(given["buffer"] * self.sr / 2)),
        )
        self._names = f"{source.description} → {sink.description}"

    def run(self) -> bool:
        """Until the end; whether Ctrl-C was that."""
        from ondes.signal.audio_writer import deferred_signals

        is_interrupted = False
        try:
            with contextlib.ExitStack() as stack:
                if self._recorder is not None:
                    for file in self._recorder.files.values():
                        make_folder(file, stack)
                for listener in self._listeners:
                    stack.enter_context(listener)
                self._listen()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:  # also where a device has gone
            with deferred_signals():
                if self._learner is not None and self._learner.learned is not None:
                    self._learner.learned.save(self._given["learned"], force=True)
        for listener in self._listeners:
            listener.check()
        return is_interrupted

    def _listen(self) -> None:
        meters = _Meters(self._mix, self._sound) if sys.stderr.isatty() else None
        with _keys() as read_key, self._sound:
            terminal.say(
                f"{printable(self._names)}, {self.sr} Hz, {1000 * self.delay:.0f} ms and "
                f"{1000 * self._sound.device_seconds:.0f} ms of the devices; Ctrl-C ends.",
                err=True,
            )
            if meters is not None and read_key is not None:
                terminal.say(KEYS, err=True)
            while True:
                key = read_key() if read_key is not None else None
                if key == "q":
                    return
                if read_key is None:
                    time.sleep(REDRAW_S)
                if key is not None:
                    self._press(key)
                self._sound.check()
                for listener in self._listeners:
                    listener.check()
                if meters is not None:
                    meters.draw(self._chosen)

    _chosen = 0

    def _press(self, key: str) -> None:
        names, gains = self._mix.names, self._mix.gains
        if key.isdecimal() and 1 <= int(key) <= len(names):
            self._chosen = int(key) - 1
        name = names[self._chosen]
        gain = gains[name]
        if key in "+=-":
            step = -STEP_DB if key == "-" else STEP_DB
            start = LEAST_DB if gain == -math.inf else gain
            gains[name] = min(MOST_DB, max(LEAST_DB, start + step))
        elif key == "m":
            gains[name] = 0.0 if gain == -math.inf else -math.inf

    def facts(self) -> dict[str, Any]:
        """What to report."""
        sound = self._sound
        return {
            "seconds": sound.seconds,
            "sr": self.sr,
            "delay": self.delay,
            "device_delay": sound.device_seconds,
            "load": sound.processor_seconds / max(sound.seconds, 1e-9),
            "n_overflows": sound.n_overflows,
            "missing": sound.waiting.n_missing / self.sr,
            "left_out": sound.waiting.n_left_out / self.sr,
            "not_written": sum(each.n_left_out for each in self._listeners) / self.sr,
            "files": {} if self._recorder is None else self._recorder.files,
            "learned": self._given["learned"],
        }

    def say_what_was(self) -> None:
        """Print what was written and, on standard error, how it went."""
        facts = self.facts()
        terminal.complain(
            f"{terminal.clock(facts['seconds'])} of sound with {100 * facts['load']:.0f} % of one "
            f"core; {1000 * facts['missing']:.0f} ms were missing in gaps, "
            f"{1000 * facts['left_out']:.0f} ms left out."
        )
        if facts["not_written"]:
            terminal.complain(
                f"{1000 * facts['not_written']:.0f} ms of it were heard, but not recorded or "
                "learned from: the disk or the processor was too slow."
            )
        for file in facts["files"].values():
            terminal.say(printable(str(file)))
        if self._learner is not None and self._learner.learned is not None:
            terminal.say(printable(facts["learned"]))


class _Meters:
    """Levels, gains and load on the last lines of a terminal."""

    def __init__(self, mix: LiveMix, sound: LiveSound) -> None:
        self._mix, self._sound = mix, sound
        self._is_drawn = False
        self._before = 0.0, 0.0

    def draw(self, chosen: int) -> None:
        """Draw everything again."""
        sound, lines = self._sound, []
        width = max(map(len, self._mix.names))
        for number, (name, level) in enumerate(self._mix.levels().items()):
            full = round(BAR_WIDTH * max(0.0, min(1.0, 1 + level / BAR_DB)))
            gain = self._mix.gains[name]
            said = "muted" if gain == -math.inf else f"{gain:+.0f} dB"
            mark = ">" if number == chosen else " "
            bar = "█" * full + "·" * (BAR_WIDTH - full)
            lines.append(f"{mark}{number + 1} {printable(name):{width}s} {bar} {said}")
        now = sound.processor_seconds, sound.seconds
        busy, heard = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        lines.append(
            f"  load {100 * busy / max(heard, 1e-9):3.0f} %, longest block "
            f"{1000 * sound.take_longest():.1f} ms, "
            f"waiting {1000 * sound.waiting.n_waiting / max(sound.sr, 1):.0f} ms, "
            f"missing {1000 * sound.waiting.n_missing / sound.sr:.0f} ms"
        )
        columns = shutil.get_terminal_size().columns - 1
        up = f"\x1b[{len(lines)}A" if self._is_drawn else ""
        self._is_drawn = True
        text = "".join(f"\x1b[2K{line[:columns]}\n" for line in lines)
        terminal.say((up + text).rstrip("\n"), err=True)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """What waits a moment for a key of the terminal, or None where there is no terminal."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield None
        return
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> str | None:
        if not select.select([descriptor], [], [], REDRAW_S)[0]:
            return None
        return os.read(descriptor, 1).decode("ascii", "replace") or "q"

    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

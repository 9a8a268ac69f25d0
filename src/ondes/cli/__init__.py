"""The command `ondes`. Heavy modules are imported inside the commands: help appears at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from ondes import __version__
from ondes.cli import terminal
from ondes.cli.demo import demo
from ondes.cli.denoise import denoise
from ondes.cli.info import info
from ondes.cli.learn import learn
from ondes.cli.levels import levels
from ondes.cli.live import live
from ondes.cli.models import list_models
from ondes.cli.report import report
from ondes.cli.score import score
from ondes.cli.separate import separate
from ondes.cli.studio import studio
from ondes.cli.terminal import DONE, FAILED, INTERRUPTED, complain
from ondes.cli.train import train
from ondes.errors import OndesError

__all__ = ["main", "ondes"]

READERS = ("ondes-read", "ondes-survey")  # threads
M_ARENA_MAX = -8  # of glibc's mallopt


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which a new user needs them

    def invoke(self, ctx: click.Context) -> int:
        try:
            return int(super().invoke(ctx) or DONE)
        except KeyboardInterrupt:
            complain("interrupted; no unfinished files were left behind.")
            return INTERRUPTED


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 success; 1 failure; 2 wrong usage; 3 success, but some files failed; "
    "130 interrupted, after saving. ONDES_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="ondes")
def ondes() -> None:
    """Learn dictionaries of spectra from audio of any length, and separate mixtures with them.

    \b
    Start with:  ondes separate podcast.mp3
                 ondes denoise talk.wav
    Then:        ondes learn lectures/ -o speech.ondes
                 ondes learn records/ -o music.ondes
                 ondes separate mix.wav -d speech.ondes -d music.ondes -o stems/
    """  # noqa: D301


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets your SHELL complete the commands and options of `ondes`.

    \b
    bash:  ondes completion bash >> ~/.bashrc
    zsh:   ondes completion zsh >> ~/.zshrc
    fish:  ondes completion fish > ~/.config/fish/completions/ondes.fish
    """  # noqa: D301
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ondes, {}, "ondes", "_ONDES_COMPLETE").source())


# fmt: off
for _command in (
    demo, separate, denoise, live, learn, train, studio, report, levels, score, list_models, info,
    completion,
):
    ondes.add_command(_command)
# fmt: on


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    terminal.open_closed_streams()
    _share_one_heap()
    try:
        status = _run(arguments)
    except BrokenPipeError:  # whoever read a table or a message has seen enough, as `| head` has
        status = FAILED
        for stream in (sys.stdout, sys.stderr):
            terminal.discard(stream)
    is_reading = any(each.name.startswith(READERS) for each in threading.enumerate())
    if status == INTERRUPTED and is_reading:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)  # the interpreter would wait for a thread that waits for a server
    sys.exit(status)


def _share_one_heap() -> None:
    """Let all threads share one heap: of one heap per thread, glibc would give nothing back."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other systems have other heaps
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _run(arguments: Sequence[str] | None) -> int:
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP, and nohup ignores it
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return int(ondes.main(arguments, prog_name="ondes", standalone_mode=False) or DONE)
    except click.ClickException as error:
        try:
            error.show()
        except BrokenPipeError:
            terminal.discard(sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("ONDES_DEBUG"):
            raise
        complain(_one_line(error))
        return FAILED


def _one_line(error: Exception) -> str:
    message = " ".join(str(error).split())
    expected = (OndesError, ValueError, OSError, ImportError, MemoryError)
    if isinstance(error, expected) and message:
        return message
    return f"{type(error).__name__}: {message} (a bug: ONDES_DEBUG=1 shows where; please report it)"

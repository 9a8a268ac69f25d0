"""The command `ondes`. Heavy modules are imported inside the commands: help appears at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from ondes import __version__
from ondes.cli.activations import activations
from ondes.cli.completion import completion
from ondes.cli.demo import demo
from ondes.cli.denoise import denoise
from ondes.cli.info import info
from ondes.cli.learn import learn
from ondes.cli.report import report
from ondes.cli.score import score
from ondes.cli.separate import separate
from ondes.cli.studio import studio
from ondes.cli.terminal import DONE, FAILED, INTERRUPTED, complain
from ondes.cli.train import train
from ondes.errors import OndesError

__all__ = ["main", "ondes"]


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
    Start with:  ondes demo
    Then:        ondes learn lectures/ -o speech.ondes
                 ondes learn records/ -o music.ondes
                 ondes separate mix.wav -d speech.ondes -d music.ondes -o stems/
    """  # noqa: D301


for _command in (
    demo,
    learn,
    train,
    separate,
    denoise,
    studio,
    report,
    activations,
    score,
    info,
    completion,
):
    ondes.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP, and nohup ignores it
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        status = ondes.main(arguments, prog_name="ondes", standalone_mode=False)
        sys.stdout.flush()
        return int(status or DONE)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader has closed the pipe, as `| head` does; the flush at exit must not fail, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
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

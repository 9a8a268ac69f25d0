"""`ondes studio`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import click

from ondes.cli import terminal
from ondes.errors import FileError, printable


@click.command(short_help="See, hear, group and export sounds in the browser.")
@click.argument("files", nargs=-1, metavar="[FILES]...")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port to listen on.  [default: any free one]",
)
@click.option("--no-browser", is_flag=True, help="Only print the page's address.")
def studio(files: tuple[str, ...], port: int, no_browser: bool) -> int:
    """Open recordings, folders or saved work on a page in the browser.

    Split a song into sounds that you can hear, group and export; remove the noise from speech;
    find events in hours of field recordings. No data leaves this computer, and no other computer
    can open the page. Ctrl-C stops the studio.

    \b
    ondes studio song.wav
    ondes studio field/
    ondes studio mine.ondes       (saved in the studio)
    """  # noqa: D301
    if not all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
        raise ModuleNotFoundError(
            "The studio needs starlette and uvicorn: pip install 'ondes[studio]'."
        )
    from ondes.studio.server import serve
    from ondes.studio.session import OpenedFile

    works = [Path(name) for name in files if name.endswith(".ondes")]
    for work in works:
        if not work.is_file():
            raise FileError(work, "does not exist")
    others = [name for name in files if not name.endswith(".ondes")]
    recordings, failures = terminal.find_recordings(others) if others else ([], [])
    if others and not recordings:
        return terminal.FAILED
    remote = [each for each in recordings if not isinstance(each, Path)]
    if remote:
        raise FileError(str(remote[0]), "is not a file on this machine; copy it here first")
    paths = [each for each in (*recordings, *works) if isinstance(each, Path)]
    opened = [OpenedFile(path, printable(path.name)) for path in paths]
    has_ended = serve(
        opened,
        port=port,
        open_browser=not no_browser,
        report=lambda address: terminal.say(f"The studio is at {address} (Ctrl-C stops it)."),
    )
    status = terminal.SOME_FAILED if failures else terminal.DONE
    if not has_ended:
        os._exit(status)  # the interpreter would wait for a thread that is blocked
    return status

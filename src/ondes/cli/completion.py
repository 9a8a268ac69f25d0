"""`ondes completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


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
    command = click.get_current_context().find_root().command
    click.echo(kind(command, {}, "ondes", "_ONDES_COMPLETE").source())

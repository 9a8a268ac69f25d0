"""`ondes info`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal
from ondes.errors import printable

if TYPE_CHECKING:
    from ondes.models.trained_separator import TrainedSeparator
    from ondes.nmf.learner import DictionaryLearner

N_NAMED = 3


@click.command(short_help="Describe a model, or this installation.")
@click.argument("model", required=False, type=click.Path())
@click.option("--system", is_flag=True, help="Describe this installation instead.")
@options.as_json
def info(model: str | None, system: bool, as_json: bool) -> None:
    """Describe a MODEL: its settings, and what it was learned from."""
    if (model is None) != system:
        raise click.UsageError("Give a MODEL, or --system.")
    facts = _system() if model is None else _model(model)
    if as_json:
        terminal.print_json(facts)
        return
    rows = facts | facts.get("settings", {})
    rows.pop("settings", None)
    width = max(map(len, rows))
    for name, value in rows.items():
        if name == "stopped_by" and value is None:  # it ended by itself
            continue
        shown = name.replace("_", " ") if model is None else name  # as in Python
        terminal.say(f"{shown:{width}}  {_in_words(value)}")


def _model(path: str) -> dict[str, Any]:
    from ondes.models.loading import load
    from ondes.models.trained_separator import TrainedSeparator

    dictionary = load(path)
    if isinstance(dictionary, TrainedSeparator):
        return _separator(path, dictionary)
    facts: dict[str, Any] = {
        "model": path,
        "n_components": dictionary.n_components,
        "n_bins": dictionary.components.shape[1],
        "n_frames": dictionary.learner.n_frames_seen_,
    }
    if dictionary.audio is not None:
        stft = dictionary.audio.stft
        facts |= {"sr": dictionary.audio.sr, "n_fft": stft.n_fft, "hop_length": stft.hop_length}
        facts |= {"window": stft.window, "top_db": dictionary.audio.top_db}
        facts |= {"fmax": dictionary.audio.fmax}
    if dictionary.history is not None:
        history = dictionary.history
        facts |= {"seconds": history.seconds, "divergence": history.divergence}
        facts |= {"n_files": history.n_files, "n_failed": history.n_failed}
        facts |= {"stopped_by": history.stopped_by, "files": list(history.files)}
    return facts | {"settings": _unusual_settings(dictionary.learner)}


def _separator(path: str, separator: TrainedSeparator) -> dict[str, Any]:
    stft = separator.audio.stft
    facts: dict[str, Any] = {
        "separator": path,
        "sources": list(separator.names),
        "sr": separator.audio.sr,
        "n_fft": stft.n_fft,
        "hop_length": stft.hop_length,
        "window": stft.window,
        "fmax": separator.audio.fmax,
    }
    if (history := separator.history) is not None:
        ratios = dict(zip(separator.names, history.si_sdr, strict=True))
        facts |= {"held_out_si_sdr": ratios, "n_updates": history.n_updates}
        facts |= {"n_files": sum(history.n_files), "seconds": sum(history.seconds)}
        facts |= {"stopped_by": history.stopped_by}
    return facts


def _unusual_settings(estimator: DictionaryLearner) -> dict[str, str]:
    """The parameters that differ from their defaults, arrays by their shape."""
    usual = type(estimator)().get_params(deep=False)
    own = estimator.get_params(deep=False)
    return {
        name: f"array of shape {value.shape}" if hasattr(value, "shape") else repr(value)
        for name, value in own.items()
        if name not in ("n_components", "verbose") and repr(value) != repr(usual[name])
    }


def _system() -> dict[str, Any]:
    import platform

    from ondes import __version__
    from ondes.nmf import backends

    kernel = "not built: NumPy is used instead, which is slower"
    if backends.kernel_is_built():
        from ondes.nmf.backends import native

        kernel = f"built, instruction set {native.isa()}"
    packages, extras = _packages()
    return {
        "ondes": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "native_kernel": kernel,
        **packages,
        **{f"extra_{extra}": versions for extra, versions in extras.items()},
    }


def _packages() -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """The versions of the packages that ondes needs, and of those of each extra."""
    import importlib.metadata

    packages: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in importlib.metadata.requires("ondes") or ():
        name = re.split(r"[^\w-]", requirement)[0]
        extra = re.search(r"extra == .(\w+)", requirement)
        kind = packages if extra is None else extras.setdefault(extra[1], {})
        kind[name] = _version(name)
    return packages, extras


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return (
            ", ".join(f"{printable(name)}={_in_words(part)}" for name, part in value.items())
            or "default"
        )
    if isinstance(value, list):
        more = f" and {len(value) - N_NAMED} more" if len(value) > N_NAMED else ""
        return ", ".join(map(printable, value[:N_NAMED])) + more
    if value is None:
        return "none"
    return f"{value:.5g}" if isinstance(value, float) else printable(str(value))

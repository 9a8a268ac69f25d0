"""`ondes info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ondes.cli import options, terminal

if TYPE_CHECKING:
    from ondes.nmf.estimator import OnlineISNMF

PACKAGES = ("numpy", "scipy", "scikit-learn", "soundfile", "soxr", "click", "rich")
EXTRAS = {"formats": ("av",), "report": ("matplotlib", "jinja2")}
N_NAMED = 3


@click.command(short_help="Tell what a model is, or about this installation.")
@click.argument("model", required=False, type=click.Path())
@click.option("--system", is_flag=True, help="Tell about this installation instead.")
@options.as_json
def info(model: str | None, system: bool, as_json: bool) -> None:
    """Tell what a MODEL is and where it comes from."""
    if (model is None) != system:
        raise click.UsageError("Give a MODEL, or --system.")
    told = _system() if model is None else _model(model)
    if as_json:
        terminal.print_json(told)
        return
    width = max(map(len, told))
    for name, value in told.items():
        click.echo(f"{name.replace('_', ' '):{width}}  {_in_words(value)}")


def _model(path: str) -> dict[str, Any]:
    from ondes.model_file import load

    model = load(path)
    told: dict[str, Any] = {
        "model": path,
        "n_components": model.n_components,
        "n_bins": model.n_features_in_,
        "n_frames": model.n_frames_seen_,
    }
    if model.audio_ is not None:
        stft = model.audio_.stft
        told |= {"sr": model.audio_.sr, "n_fft": stft.n_fft, "hop_length": stft.hop_length}
        told |= {"window": stft.window, "silence": model.audio_.silence}
    if model.provenance_ is not None:
        provenance = model.provenance_
        told |= {"seconds": provenance.seconds, "divergence": provenance.divergence}
        told |= {"n_files": provenance.n_files, "n_failed": provenance.n_failed}
        told |= {"stopped_by": provenance.stopped_by, "files": list(provenance.files)}
    return told | {"settings": _unusual_settings(model)}


def _unusual_settings(model: OnlineISNMF) -> dict[str, str]:
    """The parameters that are not the default, arrays by their shape."""
    usual = type(model)().get_params(deep=False)
    own = model.get_params(deep=False)
    return {
        name: f"array of shape {value.shape}" if hasattr(value, "shape") else repr(value)
        for name, value in own.items()
        if name not in ("n_components", "verbose") and repr(value) != repr(usual[name])
    }


def _system() -> dict[str, Any]:
    import platform

    from ondes import __version__
    from ondes.nmf import backends

    kernel = "not built: NumPy does the work, more slowly"
    if backends.kernel_is_built():
        from ondes.nmf.backends import native

        kernel = f"built, instruction set {native.isa()}"
    extras = {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}
    return {
        "ondes": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "native_kernel": kernel,
        **{name: _version(name) for name in PACKAGES},
        **{f"extra_{extra}": versions for extra, versions in extras.items()},
    }


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_in_words(part)}" for name, part in value.items()) or "default"
    if isinstance(value, list):
        more = f" and {len(value) - N_NAMED} more" if len(value) > N_NAMED else ""
        return ", ".join(map(terminal.printable, value[:N_NAMED])) + more
    if value is None:
        return "no"
    return f"{value:.5g}" if isinstance(value, float) else terminal.printable(str(value))

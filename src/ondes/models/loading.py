"""Reading models: dictionaries and trained separators, from files or from the shelf."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ondes.errors import FileError
from ondes.models.dictionary import Dictionary
from ondes.models.model_file import model_of, read_document, separator_of
from ondes.models.trained_separator import TrainedSeparator
from ondes.signal.locations import Location, as_location

__all__ = ["SHELF", "from_shelf", "load", "on_shelf"]

SHELF = {
    "talk": "speech, music and effects; what `ondes separate` uses without -d",
    "denoise": "speech and noise; what `ondes denoise` uses without --noise",
}
"""The separators that come with ondes; shelf/README.md says what they were trained on."""

FOLDER = Path(__file__).parent / "shelf"


def load(path: str | Location) -> Dictionary | TrainedSeparator:
    """Read a dictionary or a trained separator from a file, or a separator from the shelf.

    A dictionary continues learning exactly where it stopped.

    Parameters
    ----------
    path : str or Path
        A file, a URL (``https://…``, ``hf://…``), or ``"talk"`` or ``"denoise"`` where no
        file has this name: separators that come with ondes, of speech, music and effects, and of
        speech and noise.

    Returns
    -------
    Dictionary or TrainedSeparator

    Raises
    ------
    FileError
        If the file is missing, damaged, truncated, from a newer ondes, or not a model.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> import ondes
    >>> noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ondes.learn(noise, 4, sr=8000).save(f"{folder}/noise.ondes")
    ...     dictionary = ondes.load(f"{folder}/noise.ondes")
    >>> dictionary.audio.sr
    8000
    >>> ondes.load("talk").names
    ('speech', 'music', 'effects')
    """
    if on_shelf(path):
        return from_shelf(str(path))
    path = as_location(path) if isinstance(path, str) else path
    is_word = isinstance(path, Path) and path.name == str(path) and not path.suffix
    if is_word and not Path(str(path)).exists():
        raise FileError(
            path, f"is neither a file nor a model that comes with ondes: {', '.join(SHELF)}"
        )
    return _read(path)


def on_shelf(path: str | Location) -> bool:
    """Whether this is the name of a separator that comes with ondes, and not of a file.

    Examples
    --------
    >>> on_shelf("talk"), on_shelf("talk.ondes")
    (True, False)
    """
    return str(path) in SHELF and not Path(str(path)).exists()


@cache
def from_shelf(name: str) -> TrainedSeparator:
    """A separator that comes with ondes, whatever files there are."""
    separator = _read(FOLDER / f"{name}.ondes")
    assert isinstance(separator, TrainedSeparator)
    return separator


def _read(path: str | Location) -> Dictionary | TrainedSeparator:
    document = read_document(path)
    if "separator" in document:
        return TrainedSeparator(*separator_of(path, document))
    return Dictionary(*model_of(path, document))

"""Reading what ondes writes: dictionaries and trained separators."""

from __future__ import annotations

from pathlib import Path

from ondes.dictionary import Dictionary
from ondes.model_file import model_of, read_document, separator_of
from ondes.trained import TrainedSeparator

__all__ = ["load"]


def load(path: str | Path) -> Dictionary | TrainedSeparator:
    """Read a dictionary or a trained separator from a file.

    A dictionary continues learning exactly where it stopped.

    Parameters
    ----------
    path : str or Path

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
    """
    document = read_document(path)
    if "separator" in document:
        return TrainedSeparator(*separator_of(path, document))
    return Dictionary(*model_of(path, document))

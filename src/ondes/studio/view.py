"""The session as the page sees it: plain values, and no path."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ondes.separation.sources import REST
from ondes.studio.components import Components
from ondes.studio.pictures import LOWEST_HZ, Scale
from ondes.studio.project import Mix, as_plain
from ondes.studio.session import Session
from ondes.studio.voice import Cleaner
from ondes.tables import clock_time

__all__ = ["mix_as_plain", "scale_of", "session_as_plain"]

NEARLY_SILENT = 0.01  # of the energy of the mixture: -20 dB


def session_as_plain(session: Session) -> dict[str, Any]:
    """All that the page shows."""
    project, listening = session.project, session.listening
    return {
        "version": session.version,
        "work": session.work,
        "recordings": [
            {
                "id": recording.id,
                "name": recording.name,
                "seconds": recording.seconds,
                "sr": recording.sr,
                "channels": recording.channels,
                "clock": _clock(recording.name),
            }
            for recording in session.recordings.values()
        ],
        "sound": {"rate": listening.rate, "channels": listening.channels,
                  "chunk": listening.chunk_samples()},
        "picture": {"lowest": LOWEST_HZ, "highest": scale_of(session).highest},
        "project": as_plain(project),
        "components": _components(session),
        "cleaner": _cleaner(session),
        "mix": mix_as_plain(session.mix),
        "can_undo": session.history.can_undo,
        "can_redo": session.history.can_redo,
        "job": None if session.job is None else asdict(session.job),
        "messages": session.messages,
        "downloads": [
            {"id": number, "name": download.name} for number, download in session.downloads.items()
        ],
        "rest": REST,
    }  # fmt: skip


def _clock(name: str) -> str | None:
    """When a recording began, in ISO 8601, where its name says so."""
    began = clock_time(name)
    return None if began is None else began.isoformat()


def scale_of(session: Session) -> Scale:
    """One scale of frequencies for all recordings."""
    return Scale(max((each.sr / 2 for each in session.recordings.values()), default=22050.0))


def mix_as_plain(mix: Mix) -> dict[str, Any]:
    """What is heard, as lists and dicts."""
    return {
        "gains": dict(mix.gains),
        "muted": sorted(mix.muted),
        "soloed": sorted(mix.soloed),
        "amount": mix.amount,
    }


def _components(session: Session) -> dict[str, Any] | None:
    project = session.project
    if project.model is None:
        return None
    model = session.models[project.model]
    assert isinstance(model, Components)
    shares, curves = model.shares, model.curves
    hertz = np.arange(model.stft.n_bins) * model.sr / model.stft.n_fft
    rows = model.dictionary.components
    centres = np.exp(rows @ np.log(hertz + LOWEST_HZ)) - LOWEST_HZ
    return {
        "model": project.model,
        "chunk": session.listening.chunk_samples(model.stft, model.sr),
        "items": [
            {
                "index": index,
                "share": round(float(shares[index]), 6),
                "centre": round(float(centres[index])),
                "silent": bool(shares[index] < NEARLY_SILENT / 10),
                "curve": curves[index],
            }
            for index in np.argsort(-shares, kind="stable").tolist()
        ],
        "silent_share": NEARLY_SILENT,
        "heard": {
            name: {"every": heard.every, "steps": len(heard.levels)}
            for name, heard in model.heard.items()
        },
    }


def _cleaner(session: Session) -> dict[str, Any] | None:
    if session.project.cleaner is None:
        return None
    model = session.models[session.project.cleaner]
    assert isinstance(model, Cleaner)
    return {
        "model": session.project.cleaner,
        "chunk": session.listening.chunk_samples(model.stft, model.sr),
        "has_voice": model.voice is not None,
    }

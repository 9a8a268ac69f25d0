"""The session as the page sees it: plain values, and no path."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ondes.models.loading import SHELF
from ondes.models.sources import REST
from ondes.studio.cleaning import Cleaner
from ondes.studio.components import Components
from ondes.studio.session import Session
from ondes.studio.stems import Stems
from ondes.studio.tiles import LOWEST_HZ, Scale
from ondes.tables import clock_time

__all__ = ["scale_of", "session_as_plain"]

NEARLY_SILENT = 0.01  # of the energy of the mixture: -20 dB


def session_as_plain(session: Session) -> dict[str, Any]:
    """All that the page shows."""
    job = session.job  # first: a page that sees its end must see all that it has done
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
        "project": asdict(project),
        "components": _components(session),
        "cleaner": _cleaner(session),
        "stems": _stems(session),
        "mix": session.mix.as_plain(),
        "saved": session.saved,
        "kind": session.kind,
        "separators": _separators(session),
        "can_undo": session.history.can_undo,
        "can_redo": session.history.can_redo,
        "job": None if job is None else asdict(job),
        "messages": session.messages,
        "downloads": [
            {"id": number, "name": download.name} for number, download in session.downloads.items()
        ],
        "silent_share": NEARLY_SILENT,
        "rest": REST,
    }  # fmt: skip


def _clock(name: str) -> str | None:
    """When a recording began, in ISO 8601, where its name says so."""
    began = clock_time(name)
    return None if began is None else began.isoformat()


def scale_of(session: Session) -> Scale:
    """One scale of frequencies for all recordings."""
    highest = max((each.sr / 2 for each in session.recordings.values()), default=22050.0)
    return Scale(max(highest, 2 * LOWEST_HZ))


def _components(session: Session) -> dict[str, Any] | None:
    project = session.project
    if project.model is None:
        return None
    model = session.models[project.model]
    assert isinstance(model, Components)
    shares, curves = model.shares, model.curves
    spectra, bands = model.spectra, model.bands
    return {
        "model": project.model,
        "chunk": session.listening.chunk_samples(model.model.audio),
        "items": [
            {
                "index": index,
                "share": round(float(shares[index]), 6),
                "band": bands[index],
                "spectrum": spectra[index],
                "silent": bool(shares[index] < NEARLY_SILENT / 10),
                "curve": curves[index],
            }
            for index in np.argsort(-shares, kind="stable").tolist()
        ],
        "levels": {
            name: {"every": own.every, "steps": len(own.levels)}
            for name, own in model.levels.items()
        },
    }


def _cleaner(session: Session) -> dict[str, Any] | None:
    if session.project.cleaner is None:
        return None
    model = session.models[session.project.cleaner]
    assert isinstance(model, Cleaner)
    return {
        "model": session.project.cleaner,
        "chunk": session.listening.chunk_samples(model.model.audio),
        "parts": len(model.model.names),
        "voice": model.voice,
        "label": model.label,
    }


def _stems(session: Session) -> dict[str, Any] | None:
    if session.project.stems is None:
        return None
    stems = session.models[session.project.stems]
    assert isinstance(stems, Stems)
    return {
        "model": session.project.stems,
        "chunk": session.listening.chunk_samples(stems.model.audio),
        "label": stems.label,
        "items": [
            {"index": n, "name": name, "share": round(float(share), 6), "curve": curve}
            for n, (name, share, curve) in enumerate(
                zip(stems.names, stems.shares, stems.curves, strict=True)
            )
        ],
    }


def _separators(session: Session) -> dict[str, str]:
    """What each separator tells apart."""
    shipped = {name: text.partition(";")[0] for name, text in SHELF.items()}
    return shipped | {name: ", ".join(own.names) for name, own in session.separators.items()}

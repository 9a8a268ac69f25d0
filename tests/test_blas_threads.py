"""Separation computes small products with one thread of BLAS, and restores what was set."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from ondes import AudioSettings, Separator, Stft
from ondes.models.masks import DictionaryMasks
from ondes.separation import Sources


def n_threads() -> set[int]:
    blas = ThreadpoolController().select(user_api="blas")
    return {each["num_threads"] for each in blas.info()}


@pytest.fixture
def two_threads():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if n_threads() != {2}:
            pytest.skip("this BLAS does not have two threads")
        yield


def test_separation_has_one_thread(two_threads, monkeypatch):
    seen = []
    push = DictionaryMasks.push

    def spied(self, *frames):
        seen.append(n_threads())
        return push(self, *frames)

    monkeypatch.setattr(DictionaryMasks, "push", spied)
    sources = Sources(
        np.full((2, 33), 1 / 33), np.arange(2), ("a", "b"), AudioSettings(8000, Stft(64))
    )
    separator = Separator(sources)
    separator.push(np.ones(1000))
    separator.flush()
    assert set.union(*seen) == {1}
    assert n_threads() == {2}

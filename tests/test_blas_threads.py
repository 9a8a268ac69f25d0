"""Small products have one thread of BLAS, and what was set is restored."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from ondes import L1, AudioSettings, OnlineNMF, Separator, Stft
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


SEEN = []


class Watched(L1):
    """A penalty that sees with how many threads the products about it are computed."""

    def slope(self, share):
        SEEN.append(n_threads())
        return super().slope(share)


def test_learning_and_encoding_have_one_thread(two_threads):
    SEEN.clear()
    frames = np.random.default_rng(0).exponential(size=(60, 8))
    OnlineNMF(2, beta_loss="frobenius", penalty=Watched(0.1), n_passes=1).fit(frames)
    n_learning = len(SEEN)
    OnlineNMF(2, beta_loss="frobenius", penalty=Watched(0.1), n_passes=1).fit_transform(frames)
    assert len(SEEN) > 2 * n_learning > 0
    assert set.union(*SEEN) == {1}
    assert n_threads() == {2}

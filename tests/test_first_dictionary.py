"""The first dictionary: what each way to draw it promises, and which of them the default takes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import NEEDS_TORCH

import ondes
from ondes.nmf.initialisation import parts

N_PARTS, N_BINS = 6, 30


def moving_parts(n_frames=2200, seed=0):
    """Frames whose bins belong to one part each, with the part of each bin, in mixed order."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.arange(N_BINS) % N_PARTS)
    levels = np.exp(2 * rng.standard_normal((n_frames, N_PARTS)))
    spectrum = rng.gamma(2.0, size=N_BINS)
    return levels[:, owner] * spectrum * rng.gamma(20.0, 1 / 20, size=(n_frames, N_BINS)), owner


def drawn(frames, n_components, **settings):
    settings = {"random_state": 0, "backend": "reference"} | settings
    return ondes.OnlineNMF(n_components, **settings).initialise(frames).components_


def test_parts_are_the_bins_that_move_together_in_any_order():
    frames, owner = moving_parts()
    rows = drawn(frames, N_PARTS, init="parts")
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    relative = rows / np.exp(np.log(frames).mean(axis=0))
    found = {frozenset(np.flatnonzero(row > row.max() / 2)) for row in relative}
    assert found == {frozenset(np.flatnonzero(owner == part)) for part in range(N_PARTS)}


def test_parts_of_more_bins_than_are_compared_and_of_none_that_move():
    frames, owner = moving_parts(300)
    copies = 40  # 1200 bins, of which only some are compared with each other
    rows = drawn(np.repeat(frames, copies, axis=1), N_PARTS, init="parts")
    relative = rows / np.repeat(np.exp(np.log(frames).mean(axis=0)), copies)
    found = {frozenset(np.flatnonzero(row > row.max() / 2)) for row in relative}
    owners = np.repeat(owner, copies)
    assert found == {frozenset(np.flatnonzero(owners == part)) for part in range(N_PARTS)}
    still = drawn(np.tile(np.arange(1.0, 5.0), (300, 1)), 2, init="parts")
    np.testing.assert_allclose(still[0], np.arange(1.0, 5.0) / 10)
    assert np.isfinite(still).all()


@pytest.mark.parametrize(
    ("n_frames", "beta_loss", "init"),
    [(1999, 0, "k-means++"), (2000, 0, "parts"), (1999, 1, "k-means++"), (2000, 0.5, "random")],
)
def test_the_default_depends_on_the_divergence_and_on_how_many_frames_sound(
    n_frames, beta_loss, init
):
    frames, _ = moving_parts(n_frames)
    frames = np.concatenate([frames, np.zeros((50, N_BINS))])
    expected = drawn(frames, 8, init=init, beta_loss=beta_loss)
    np.testing.assert_array_equal(drawn(frames, 8, beta_loss=beta_loss), expected)


@pytest.mark.parametrize("seed", range(3))
def test_parts_end_lower_where_bins_move_together(seed):
    frames, _ = moving_parts(2400, seed)
    ends = {
        init: -ondes.OnlineNMF(8, init=init, random_state=seed).fit(frames).score(frames)
        for init in ("auto", "k-means++", "random")
    }
    assert ends["auto"] < 0.97 * min(ends["k-means++"], ends["random"])


def test_the_choice_does_not_depend_on_the_backend_or_the_volume(backend):
    frames, _ = moving_parts()
    first = drawn(frames, 8)
    np.testing.assert_array_equal(drawn(frames, 8, backend=backend), first)
    np.testing.assert_allclose(drawn(1e-9 * frames, 8, backend=backend), first, rtol=1e-6)


@NEEDS_TORCH
def test_a_tensor_gives_the_first_dictionary_of_its_array():
    import torch

    frames, _ = moving_parts()
    tensor = torch.from_numpy(frames)
    np.testing.assert_array_equal(drawn(tensor, 8, backend="torch"), drawn(frames, 8))


@pytest.mark.parametrize(
    "frames",
    [np.ones((1, 4)), np.ones((50, 4)), np.eye(4)[np.arange(40) % 4] + 1e-12,
     np.random.default_rng(0).exponential(size=(60, 2)) @ np.array([[1.0, 1, 0, 0], [1, 1, 1, 0]])
     + 1e-12],
    ids=["one", "alike", "one bin each", "still and silent bins"],
)  # fmt: skip
@pytest.mark.parametrize("n_components", [1, 3, 9])
def test_parts_of_any_frames_are_different_rows_that_sum_to_one(frames, n_components):
    rows = parts(frames, n_components, np.random.RandomState(0))
    assert rows.shape == (n_components, 4)
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    assert (rows > 0).all()
    assert len(np.unique(rows.round(12), axis=0)) == n_components

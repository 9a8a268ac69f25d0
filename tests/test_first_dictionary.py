"""The first dictionary: what each way to draw it promises, and which of them the default takes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from scipy import sparse

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
    ("n_frames", "beta_loss", "weighting", "init"),
    [
        (1999, 0, "level", "k-means++"),
        (2000, 0, "level", "parts"),
        (1999, 1, "equal", "k-means++"),
        (2000, 0.5, "equal", "random"),
        (1999, 1, "level", "k-means++"),
        (2000, 2, "level", "random"),
    ],
)
def test_the_default_depends_on_the_divergence_and_on_how_many_frames_sound(
    n_frames, beta_loss, weighting, init
):
    frames, _ = moving_parts(n_frames)
    frames = np.concatenate([frames, np.zeros((50, N_BINS))])
    how = {"beta_loss": beta_loss, "weighting": weighting}
    expected = drawn(frames, 8, init=init, **how)
    np.testing.assert_array_equal(drawn(frames, 8, **how), expected)


@pytest.mark.parametrize("beta", [1, 2])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_a_frame_is_drawn_as_often_as_it_counts_and_holds_half_the_mean(kind, beta):
    """A dictionary of one row, from frames of one bin each: the bin that it has most of."""
    totals = np.array([1.0, 2.0, 3.0, 4.0])
    frames = np.diag(totals)
    share = totals**beta / (totals**beta).sum()
    rows = np.array(
        [
            drawn(kind(frames), 1, random_state=seed, beta_loss=beta, init="random")[0]
            for seed in range(1500)
        ]
    )
    which = rows.argmax(axis=1)
    how_often = np.bincount(which, minlength=4) / len(rows)
    np.testing.assert_allclose(how_often, share, atol=4 * 0.5 / np.sqrt(len(rows)))
    for row, one in zip(rows, which, strict=True):
        np.testing.assert_allclose(row, (share + (np.arange(4) == one)) / 2, atol=1e-5)


def test_counts_whose_totals_differ_a_hundredfold_end_where_those_of_scikit_learn_do():
    from sklearn.decomposition import NMF

    ratios = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        shares = rng.gamma(0.3, size=(1000, 8)) @ rng.gamma(0.3, size=(8, 60)) + 1e-3
        shares /= shares.sum(axis=1, keepdims=True)
        counts = rng.poisson(shares * rng.lognormal(5, 1.5, size=(1000, 1))).astype(float)
        ends = []
        how = {"beta_loss": "kullback-leibler", "random_state": seed}
        for learner in (ondes.OnlineNMF(8, **how), NMF(8, solver="mu", **how)):
            rows = learner.fit(counts).components_
            scored = ondes.OnlineNMF(8, init=rows, transform_solver=ondes.Solver(500, 1e-4), **how)
            ends.append(-scored.initialise(counts).score(counts))
        ratios.append(ends[0] / ends[1])
    assert np.median(ratios) < 1.02


@pytest.mark.parametrize("beta", [0, 1])
def test_frames_that_have_nothing_where_bins_count_are_not_drawn(beta):
    rng = np.random.default_rng(0)
    frames = rng.exponential(size=(40, 6))
    frames[:15, 1:] = 0
    frames[20, 3] = np.nan
    rows = drawn(
        frames[rng.integers(0, 40, 80)], 3, beta_loss=beta, feature_weight=[0, 1, 1, 1, 1, 1]
    )
    assert np.isfinite(rows).all()
    assert (rows[:, 1:].sum(axis=1) > 0.05).all()


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

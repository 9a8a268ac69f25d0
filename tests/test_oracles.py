"""The estimator equals independent software, and the paper rewritten in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import spectrogram
from sklearn.decomposition import NMF

import ondes

EPSILON = 1e-12


def loop_step(v, w, h, floor):
    """One majorise-minimise step of one frame's activations, entry by entry."""
    n_bins, n_components = len(v), len(h)
    new = []
    for k in range(n_components):
        numerator = denominator = 0.0
        for f in range(n_bins):
            y = floor + sum(w[f][j] * h[j] for j in range(n_components))
            numerator += w[f][k] * (v[f] + floor) / y**2
            denominator += w[f][k] / y
        new.append(h[k] * (numerator / denominator) ** 0.5)
    return new


def loop_start(v, w, n_components, floor, level):
    """Equal activations at the gain that minimises the divergence."""
    n_bins = len(v)
    even = n_bins / n_components * level
    gain = 0.0
    for f in range(n_bins):
        y = floor + sum(w[f][k] * even for k in range(n_components))
        gain += (v[f] + floor) / y / n_bins
    return [even * gain] * n_components


def loop_algorithm_1(frames, dictionary, *, batch_size, r, n_steps, n_passes):
    """Algorithm 1 with the errata, W as the paper has it: (n_bins, n_components)."""
    n_frames, n_bins = len(frames), len(frames[0])
    n_components = len(dictionary)
    w = [[dictionary[k][f] for k in range(n_components)] for f in range(n_bins)]
    A = [[0.0] * n_components for _ in range(n_bins)]
    B = [[0.0] * n_components for _ in range(n_bins)]
    for _ in range(n_passes):
        for first in range(0, n_frames, batch_size):
            batch = frames[first : first + batch_size]
            a = [[0.0] * n_components for _ in range(n_bins)]
            b = [[0.0] * n_components for _ in range(n_bins)]
            for v in batch:
                level = sum(v) / n_bins
                floor = EPSILON * level
                h = loop_start(v, w, n_components, floor, level)
                for _ in range(n_steps):
                    h = loop_step(v, w, h, floor)
                for f in range(n_bins):
                    y = floor + sum(w[f][j] * h[j] for j in range(n_components))
                    for k in range(n_components):
                        a[f][k] += (v[f] + floor) / y**2 * h[k] * w[f][k] ** 2
                        b[f][k] += h[k] / y
            rho = r ** (len(batch) / n_frames)
            for f in range(n_bins):
                for k in range(n_components):
                    A[f][k] = rho * A[f][k] + a[f][k]
                    B[f][k] = rho * B[f][k] + b[f][k]
                    w[f][k] = (A[f][k] / B[f][k]) ** 0.5
            for k in range(n_components):
                s = sum(w[f][k] for f in range(n_bins))
                for f in range(n_bins):
                    w[f][k] /= s
                    A[f][k] /= s
                    B[f][k] *= s
    return np.array(w).T


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_the_paper_preset_is_algorithm_1(backend, batch_size, r):
    frames = spectrogram(n_frames=7, n_bins=6, n_components=2, seed=3)
    first = spectrogram(n_frames=3, n_bins=6, seed=4)
    first /= first.sum(axis=1, keepdims=True)
    model = ondes.OnlineNMF.paper(
        3, batch_size=batch_size, r=r, n_passes=2, shuffle=False, init=first, backend=backend,
        solver=ondes.Solver.paper(5),
    ).fit(frames)  # fmt: skip
    expected = loop_algorithm_1(
        frames.tolist(), first.tolist(), batch_size=batch_size, r=r, n_steps=5, n_passes=2
    )
    np.testing.assert_allclose(model.components_, expected, rtol=1e-10)


def plain_batch(frames, w, n_iterations):
    """Batch majorise-minimise in the textbook form: all of H, then all of W, then unit rows."""
    level = frames.mean(axis=1, keepdims=True)
    v, floor = frames / level + EPSILON, EPSILON
    n_bins, n_components = frames.shape[1], len(w)
    even = n_bins / n_components * w.sum(axis=0) + floor
    h = np.repeat(n_bins / n_components * (v / even).mean(axis=1, keepdims=True), n_components, 1)
    for _ in range(n_iterations):
        y = h @ w + floor
        h = h * np.sqrt(((v / y**2) @ w.T) / ((1 / y) @ w.T))
        y = h @ w + floor
        w = w * np.sqrt((h.T @ (v / y**2)) / (h.T @ (1 / y)))
        scale = w.sum(axis=1)
        w, h = w / scale[:, None], h * scale
    return w


@pytest.mark.parametrize("shuffle", [False, True])
def test_whole_set_batches_without_memory_are_batch_nmf(backend, shuffle):
    """β = N and r = 0: the order of the frames does not matter either."""
    frames = spectrogram(n_frames=60)
    first = ondes.OnlineNMF(4, init="random", random_state=0, backend=backend)
    first = first.partial_fit(frames).components_
    model = ondes.OnlineNMF.paper(
        4, batch_size=len(frames), r=0.0, restarts="warm", n_passes=25, init=first,
        shuffle=shuffle, random_state=0, backend=backend,
    ).fit(frames)  # fmt: skip
    expected = plain_batch(frames, first, 25)
    np.testing.assert_allclose(model.components_, expected, rtol=1e-12 if not shuffle else 1e-10)
    preset = ondes.OnlineNMF.batch(4, n_passes=25, init=first, backend=backend).fit(frames)
    np.testing.assert_allclose(preset.components_, expected, rtol=1e-12)


def test_batch_nmf_equals_scikit_learns(backend):
    """Well-scaled float64 data, on which its absolute floors have no effect."""
    frames = spectrogram(n_frames=50, n_bins=20, n_components=3) + 0.05
    frames /= frames.mean(axis=1, keepdims=True)
    rng = np.random.default_rng(1)
    first = rng.uniform(0.5, 1.5, size=(3, 20))
    first /= first.sum(axis=1, keepdims=True)
    even = np.full(50, 20 / 3)
    start = np.repeat((even * (frames / (20 / 3 * first.sum(axis=0))).mean(axis=1))[:, None], 3, 1)
    theirs = NMF(3, solver="mu", beta_loss="itakura-saito", init="custom", max_iter=40, tol=0)
    # It updates W (our activations) first, then H (our dictionary), as we do.
    theirs.fit_transform(frames, W=start.copy(), H=first.copy())
    rows = theirs.components_ / theirs.components_.sum(axis=1, keepdims=True)
    ours = ondes.OnlineNMF.batch(3, n_passes=40, init=first, backend=backend).fit(frames)
    np.testing.assert_allclose(ours.components_, rows, rtol=1e-7)


def test_converged_activations_equal_a_general_optimiser(backend):
    """The solution of the inner problem, against SciPy's L-BFGS-B in log activations."""
    from scipy.optimize import minimize

    frames = spectrogram(n_frames=4, n_bins=12, n_components=3)
    dictionary = spectrogram(n_frames=3, n_bins=12, seed=9)
    model = ondes.OnlineNMF(
        3, init=dictionary, backend=backend, transform_solver=ondes.Solver(max_steps=5000, tol=1e-9)
    ).partial_fit(frames[:1])
    found = model.transform(frames)
    for v, h in zip(frames, found, strict=True):
        floor = EPSILON * v.mean()

        def cost(log_h, v=v, floor=floor):
            ratio = (v + floor) / (np.exp(log_h) @ model.components_ + floor)
            return np.sum(ratio - np.log(ratio) - 1)

        starts = [np.log(np.full(3, v.sum() / 3)), np.log(h + 1e-12)]
        best = min(minimize(cost, s, method="L-BFGS-B", tol=1e-14).fun for s in starts)
        assert cost(np.log(h + 1e-300)) <= best * (1 + 1e-6)

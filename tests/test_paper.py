"""`OnlineNMF.paper` is Algorithm 1 of the paper, against plain loops written from the paper alone.

Its one error that changes results is corrected: ρ multiplies the past, not the new sums. The inner
argmin is a number of majorise-minimise steps, as section 2.1 says; matrices are those of the paper.
"""

from __future__ import annotations

import inspect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import ondes
from ondes.nmf.dictionary_update import update

F, N, K = 6, 11, 3
rng = np.random.default_rng(5)
V = rng.exponential(size=(F, N)) * rng.exponential(size=N)
W0 = rng.uniform(0.2, 1, size=(F, K))
W0 /= W0.sum(axis=0)
HS = rng.uniform(0.1, 2, size=(K, N))  # h at t = 0 of each sample
A0, B0 = rng.uniform(1, 3, size=(2, F, K))


def algorithm_1(order, beta, rho, eta, eps, A, B, start, warm, n_steps, counter_runs_on):
    """W, A, B and how far each update moved W.

    `order` has the samples that are drawn, pass by pass, and `start` gives the h of a sample.
    """
    W, A, B, moves = W0.copy(), A.copy(), B.copy(), []
    H = {n: start(n) for n in range(N)} if warm else {}
    a, b, drawn = np.zeros((F, K)), np.zeros((F, K)), 0
    for samples in order:
        for number, n in enumerate(samples):
            v, h = V[:, n], H[n] if n in H else start(n)
            e = eps(n)
            for _ in range(n_steps):
                y = [e + sum(W[f, k] * h[k] for k in range(K)) for f in range(F)]
                up = [sum(W[f, k] * (e + v[f]) / y[f] ** 2 for f in range(F)) for k in range(K)]
                down = [sum(W[f, k] / y[f] for f in range(F)) for k in range(K)]
                h = np.array([h[k] * math.sqrt(up[k] / down[k]) for k in range(K)])
            if warm:
                H[n] = h
            for f in range(F):
                y = e + sum(W[f, k] * h[k] for k in range(K))
                for k in range(K):
                    a[f, k] += (e + v[f]) / y**2 * h[k] * W[f, k] ** 2
                    b[f, k] += h[k] / y
            drawn += 1
            if drawn < beta and (counter_runs_on or number + 1 < len(samples)):
                continue
            A, B = rho(drawn) * A + a, rho(drawn) * B + b
            a, b, drawn = np.zeros((F, K)), np.zeros((F, K)), 0
            before, W = W, np.sqrt(A / B)
            for k in range(K):
                s = sum(W[:, k])
                W[:, k], A[:, k], B[:, k] = W[:, k] / s, A[:, k] / s, B[:, k] * s
                for n in H:
                    H[n][k] *= s
            moves.append(math.sqrt(((W - before) ** 2).sum()))
            if moves[-1] < eta:
                return W, A, B, moves
    return W, A, B, moves


def check(
    backend, *, beta=4, r=0.5, rho=None, eta=0.0, eps=None, prior=False, H0="given", warm=False,
    n_steps=3, counter_runs_on=False, n_passes=3, shuffle=True,
):  # fmt: skip
    """Compare both; returns how far each update moved W."""
    generator = np.random.RandomState(0)
    order = [generator.permutation(N) if shuffle else np.arange(N) for _ in range(n_passes)]
    level = V.mean(axis=0)

    def start(n):
        if H0 == "given":
            return HS[:, n].copy()
        if H0 == "random":
            return level[n] * generator.uniform(size=K) * 2 * F / K
        # "even": one number for all activations, at the gain that fits best
        gain = np.mean((V[:, n] / level[n] + 1e-12) / (W0.sum(axis=1) * F / K + 1e-12))
        return np.full(K, gain * level[n] * F / K)

    A, B = (A0, B0) if prior else (np.zeros((F, K)), np.zeros((F, K)))
    W, A, B, moves = algorithm_1(
        order, beta or N, (lambda n: r ** (n / N)) if rho is None else (lambda n: rho), eta,
        (lambda n: 1e-12 * level[n]) if eps is None else (lambda n: eps),
        A, B, start, warm, n_steps, counter_runs_on,
    )  # fmt: skip
    model = ondes.OnlineNMF.paper(
        K, beta=beta, r=r, rho=rho, eta=eta, epsilon=eps, W0=W0.T,
        A0=A0.T if prior else None, B0=B0.T if prior else None,
        H0=HS.T if H0 == "given" else H0, n_steps=n_steps, restarts="warm" if warm else "fresh",
        remainder="carry" if counter_runs_on else "update", n_passes=n_passes, shuffle=shuffle,
        random_state=0, backend=backend,
    ).fit(V.T)  # fmt: skip
    for found, expected in (
        (model.components_, W),
        (model.statistics_.numerator, A),
        (model.statistics_.denominator, B),
    ):
        np.testing.assert_allclose(found.T, expected, rtol=1e-12, atol=1e-14)
    return moves


GRID = list(itertools.product([1, 4, None, 17], [0.0, 0.5, 1.0], [False, True], [False, True]))


@pytest.mark.parametrize(("beta", "r", "warm", "counter_runs_on"), GRID)
def test_every_batch_size_and_memory(backend, beta, r, warm, counter_runs_on):
    n_steps = 1 if warm else 3
    check(backend, beta=beta, r=r, warm=warm, counter_runs_on=counter_runs_on, n_steps=n_steps)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    "inputs",
    [
        {"rho": 0.3},
        {"rho": 1.0, "beta": 1},
        {"prior": True},
        {"prior": True, "beta": None, "r": 0.9},
        {"eps": 0.2},
        {"eps": 0.2, "counter_runs_on": True, "prior": True},
        {"shuffle": False, "beta": 17, "counter_runs_on": True, "n_passes": 7},
        {"n_steps": 1},
        {"n_steps": 9},
    ],
    ids=str,
)
def test_every_other_input(backend, inputs, warm):
    check(backend, warm=warm, **inputs)


def test_starts_of_the_inner_loop(backend):
    check(backend, H0="random", shuffle=False)
    check(backend, H0="random", shuffle=False, beta=None, n_steps=1)
    check(backend, H0="even", n_passes=1, beta=None)


@pytest.mark.parametrize("warm", [False, True])
def test_the_stopping_rule_ends_with_the_very_update(backend, warm):
    moves = check(backend, warm=warm)
    for eta in sorted(moves)[:4]:
        number = next(n for n, move in enumerate(moves, 1) if move < eta * (1 + 1e-9))
        assert len(check(backend, eta=eta * (1 + 1e-9), warm=warm)) == number


def test_at_r_0_a_row_that_underflows_stays_what_it_is(backend):
    """√(A/B) of its entries is zero, and so is their sum."""
    new = ondes.Statistics(A0.T.copy(), B0.T.copy(), 0.0, 1.0)
    new.numerator[1], new.denominator[1] = 1e-310, 1e300
    rows, past = W0.T, ondes.Statistics(A0.T, B0.T, 0.0, 1.0)
    if backend == "torch":
        torch = pytest.importorskip("torch")
        rows = torch.from_numpy(rows.copy())
        past, new = (
            ondes.Statistics(*map(torch.from_numpy, (each.numerator, each.denominator)), None, None)
            for each in (past, new)
        )
        found, _, scale = update(rows, past, new, torch.zeros(1), exponent=0.5, xp=torch)
    else:
        found, _, scale = update(rows, past, new, 0.0, exponent=0.5)
    expected = np.sqrt(A0 / B0).T
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.asarray(found)[[0, 2]], expected[[0, 2]], rtol=1e-12)
    np.testing.assert_array_equal(np.asarray(found)[1], W0.T[1])
    assert np.asarray(scale)[1] == 1


def test_the_table_has_every_input_and_the_oracle_is_given_each():
    page = (Path(__file__).parent.parent / "docs" / "algorithm.md").read_text(encoding="utf-8")
    table = page.partition("## The paper's inputs")[2].partition("\n## ")[0]
    inputs = set(inspect.signature(ondes.OnlineNMF.paper).parameters) - {"n_components", "others"}
    call = inspect.getsource(check).partition("OnlineNMF.paper(")[2].partition(").fit(")[0]
    for name in (*inputs, "remainder", "shuffle"):
        assert f"`{name}" in table, name
        assert f" {name}=" in call, name

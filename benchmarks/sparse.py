"""Counts and other data that are not sound, against scikit-learn's `NMF` and `MiniBatchNMF`.

    python benchmarks/sparse.py [--only stream ends choice memory] [--seeds N]

"stream" has 100,000 × 2,000 counts, 3 % of them not zero, and Kullback-Leibler: how long the
default takes to what the others end with after 20 passes. "ends" has sets that scikit-learn's users
have, "choice" synthetic data of a known number of components, and "memory" a stream of ten million
sparse rows. Processor seconds of one thread. Every dictionary is scored at converged activations,
which is not timed; the score is the divergence per entry.
"""

from __future__ import annotations

import argparse
import inspect
import os
import pkgutil
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy is imported

import numpy as np  # noqa: E402
from kept import KEPT, ROOT  # noqa: E402
from scipy import sparse  # noqa: E402

import ondes  # noqa: E402

SHAPE, K, N_PASSES, DENSITY = (100_000, 2000), 20, 20, 0.03
N_SCORED = 4000  # rows of the large set
KL, FROBENIUS = "kullback-leibler", "frobenius"
PARTS = ("stream", "ends", "choice", "memory")
SCORING = ondes.Solver(max_steps=500, tol=1e-4)
SETS = {
    "words": "word counts of Python's docstrings",
    "digits": "handwritten digits",
    "lognormal": "counts with lognormal row sums",
    "low rank": "dense, of rank 20 with noise",
}
TRUE_NUMBERS = (3, 4, 5, 7, 10, 14, 20, 27, 34, 40)
STREAMED, BLOCK, WORDS_PER_ROW = 10_000_000, 10_000, 20
PEERS = {KL: ("mu",), FROBENIUS: ("mu", "cd")}


# ---- the sets ----


def topics(shape: tuple[int, int], seed: int) -> sparse.csr_array:
    """Counts of documents of 40 topics over words of Zipf's frequencies, 3 % of them not zero."""
    rng = np.random.default_rng(seed)
    n_rows, n_words = shape
    common = 1 / np.arange(10, n_words + 10)
    words = rng.gamma(0.05, size=(40, n_words)) * common + 0.02 * common
    words /= words.sum(axis=1, keepdims=True)
    blocks = []
    for first in range(0, n_rows, 5000):
        n = min(5000, n_rows - first)
        shares = rng.dirichlet(np.full(40, 0.1), size=n)
        lengths = rng.lognormal(np.log(1.06 * DENSITY * n_words), 0.6, size=(n, 1))
        blocks.append(sparse.csr_array(rng.poisson(lengths * (shares @ words)).astype(np.float32)))
    return sparse.vstack(blocks, format="csr")


def words() -> sparse.csr_array:
    """Word counts of the docstrings of the standard library, a row for each."""
    from sklearn.feature_extraction.text import CountVectorizer

    texts = set()
    for module in pkgutil.iter_modules():
        if module.name not in sys.stdlib_module_names or module.name in {"antigravity", "this"}:
            continue
        try:
            found = __import__(module.name)
        except Exception:  # of another system
            continue
        for _, each in [("", found), *inspect.getmembers(found)]:
            for _, member in [
                ("", each),
                *(inspect.getmembers(each) if inspect.isclass(each) else []),
            ]:
                text = inspect.getdoc(member)
                if text and len(text) > 200:
                    texts.add(text)
    counter = CountVectorizer(stop_words="english", min_df=5, max_df=0.3)
    return sparse.csr_array(counter.fit_transform(sorted(texts)).astype(np.float64))


def given(name: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if name == "words":
        return words()
    if name == "digits":
        from sklearn.datasets import load_digits

        return load_digits().data
    shares = rng.gamma(0.3, size=(2000, K)) @ rng.gamma(0.3, size=(K, 200)) + 1e-3
    if name == "low rank":
        return np.maximum(0, shares + 0.1 * rng.standard_normal(shares.shape))
    shares /= shares.sum(axis=1, keepdims=True)
    counts = rng.poisson(shares * rng.lognormal(5, 1.5, size=(2000, 1)))
    return counts[counts.any(axis=1)].astype(np.float64)


# ---- learning ----


def score(X: Any, components: np.ndarray, beta_loss: str) -> float:
    """The divergence per entry at converged activations: lower is better."""
    rows = components[components.sum(axis=1) > 0]
    model = ondes.OnlineNMF(len(rows), beta_loss=beta_loss, init=rows, transform_solver=SCORING)
    return -model.initialise(X[:10]).score(X)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run()
    return time.process_time() - began, found


def curve(X: Any, beta_loss: str, seed: int, n_passes: int | None) -> list[tuple[float, Any]]:
    """The default's dictionaries on its way, each with the processor seconds it took."""
    snapshots: list[tuple[float, Any]] = []
    began, n_updates = time.process_time(), 0

    def keep(model: Any) -> None:
        nonlocal n_updates
        n_updates += 1
        if n_updates % max(1, n_updates // 4) == 0:
            snapshots.append((time.process_time() - began, model.components_))

    model = ondes.OnlineNMF(
        K, beta_loss=beta_loss, n_passes=n_passes, random_state=seed, callback=keep
    ).fit(X)
    snapshots.append((time.process_time() - began, model.components_))
    return snapshots


def measure_stream(seed: int) -> dict[str, Any]:
    """One seed of the large set."""
    from sklearn.decomposition import NMF, MiniBatchNMF

    X = topics(SHAPE, seed)
    some = X[np.random.default_rng(seed).choice(SHAPE[0], N_SCORED, replace=False)]
    row: dict[str, Any] = {"seed": seed, "density": X.nnz / np.prod(SHAPE), "peers": {}}
    on_the_way = [(s, score(some, each, KL)) for s, each in curve(X, KL, seed, None)]
    row["default"] = {"seconds": on_the_way[-1][0], "end": on_the_way[-1][1]}
    how = {"beta_loss": KL, "max_iter": N_PASSES, "tol": 0, "init": "random", "random_state": seed}
    learners = {
        "MiniBatchNMF": MiniBatchNMF(K, max_no_improvement=None, batch_size=1024, **how),
        'NMF("mu")': NMF(K, solver="mu", **how),
    }
    for name, learner in learners.items():
        seconds, fitted = timed(partial(learner.fit, X))
        end = score(some, fitted.components_, KL)
        reached = [s for s, value in on_the_way if value <= end]
        row["peers"][name] = {
            "seconds": seconds, "end": end, "reached": reached[0] if reached else None
        }  # fmt: skip
        print(seed, name, row["peers"][name], row["default"], flush=True)
    return row


def learned(who: str, X: Any, beta_loss: str, seed: int) -> np.ndarray:
    """The dictionary of the default, also after one step of `NMF`, or of one of its solvers."""
    from sklearn.decomposition import NMF

    how = {"beta_loss": beta_loss, "random_state": seed}
    if who == "default":
        return ondes.OnlineNMF(K, **how).fit(X).components_
    if who == "begun by NMF":
        init = NMF(K, init="nndsvda", solver="mu", max_iter=1, **how).fit(X).components_
        return ondes.OnlineNMF(K, init=init, **how).fit(X).components_
    return NMF(K, solver=who, **how).fit(X).components_


def measure_ends(name: str, beta_loss: str, n_seeds: int) -> dict[str, Any]:
    """Medians of seeds: ends and seconds of the default and of `NMF` with its defaults."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(n_seeds):
        X = given(name, seed)
        for who in ("default", "begun by NMF", *PEERS[beta_loss]):
            seconds, components = timed(partial(learned, who, X, beta_loss, seed))
            found.setdefault(who, []).append((seconds, score(X, components, beta_loss)))
    row: dict[str, Any] = {"set": name, "beta_loss": beta_loss, "shape": list(X.shape)}
    for who, each in found.items():
        seconds, end = np.median(each, axis=0)
        row[who] = {"seconds": float(seconds), "end": float(end)}
    print(row, flush=True)
    return row


def of_components(n_components: int, beta_loss: str, seed: int) -> np.ndarray:
    """2,000 × 200 numbers of so many components in noise: Poisson's, or 30 % of the mean."""
    rng = np.random.default_rng(seed)
    shares = rng.gamma(0.4, size=(2000, n_components)) + 1e-3
    model = shares @ rng.gamma(0.4, size=(n_components, 200)) + 1e-3
    model /= model.mean(axis=1, keepdims=True)
    if beta_loss == KL:
        return rng.poisson(5 * model).astype(float)
    return np.maximum(0, model + 0.3 * rng.standard_normal(model.shape))


def measure_choice(beta_loss: str, n_components: int) -> dict[str, Any]:
    """Which number is chosen where it is known."""
    X = of_components(n_components, beta_loss, n_components)
    seconds, choice = timed(partial(ondes.choose_components, X, beta_loss=beta_loss))
    row = {"beta_loss": beta_loss, "components": n_components, "chosen": choice.n_components}
    row["seconds"] = seconds
    print(row, flush=True)
    return row


def measure_memory() -> dict[str, Any]:
    """The process's memory on the way through a stream of sparse rows."""
    blocks = [
        sparse.random_array(
            (BLOCK, SHAPE[1]),
            density=WORDS_PER_ROW / SHAPE[1],
            format="csr",
            rng=np.random.default_rng(seed),
            data_sampler=lambda size: np.ones(size, np.float32),
        )
        for seed in range(10)
    ]
    model = ondes.OnlineNMF(K, beta_loss=KL, random_state=0, batch_size=1000)
    page, on_the_way = os.sysconf("SC_PAGE_SIZE"), []
    began = time.process_time()
    for number in range(STREAMED // BLOCK):
        model.partial_fit(blocks[number % len(blocks)])
        n_rows = (number + 1) * BLOCK
        if n_rows % (STREAMED // 10) == 0 or number == 9:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
            on_the_way.append({"rows": n_rows, "MB": round(resident / 1e6, 1)})
    seconds = time.process_time() - began
    row = {"seconds": seconds, "words": WORDS_PER_ROW, "on_the_way": on_the_way}
    print(row, flush=True)
    return row


# ---- the page ----


def table(results: dict[str, Any]) -> str:
    """The tables for docs/tutorials/counts.md."""
    rows = results["stream"]
    share = np.median([row["density"] for row in rows])
    ours = {key: np.median([row["default"][key] for row in rows]) for key in ("seconds", "end")}
    lines = [
        f"**{SHAPE[0]:,} × {SHAPE[1]:,} counts**, {share:.1%} of them not zero, K = {K}, "
        f"Kullback-Leibler, {N_PASSES} passes of scikit-learn:",
        "",
        "| | seconds | ends at | the default is there after | sooner | and ends lower by |",
        "|---|---|---|---|---|---|",
    ]
    for name in rows[0]["peers"]:
        peer = [row["peers"][name] for row in rows]
        seconds, end = (np.median([each[key] for each in peer]) for key in ("seconds", "end"))
        reached = [each["reached"] for each in peer]
        there, sooner = "never", ""
        if None not in reached:
            there = f"{np.median(reached):.2f} s"
            sooner = f"{np.median([each['seconds'] / each['reached'] for each in peer]):.0f} ×"
        lower = 1 - np.median([row["default"]["end"] / row["peers"][name]["end"] for row in rows])
        lines.append(f"| `{name}` | {seconds:.0f} | {end:.4f} | {there} | {sooner} | {lower:.1%} |")
    lines += [
        f"| the default | {ours['seconds']:.0f} | {ours['end']:.4f} | | | |",
        "",
        f"**Sets that fit into memory**, K = {K}, with all defaults, medians of "
        f"{results['n_seeds']} seeds: the divergence where each ends, and the seconds it took.",
        "",
        '| | | the default | begun by a step of `NMF` | `NMF("mu")` | `NMF("cd")` |',
        "|---|---|---|---|---|---|",
    ]
    for row in results["ends"]:
        cells = []
        for who in ("default", "begun by NMF", "mu", "cd"):
            each = row.get(who)
            cells.append("" if each is None else f"{each['end']:.4g} in {each['seconds']:.2f} s")
        divergence = "Kullback-Leibler" if row["beta_loss"] == KL else "Frobenius"
        n_rows, n_bins = row["shape"]
        title = f"{SETS[row['set']]}, {n_rows:,} × {n_bins:,}"
        lines.append(f"| {title} | {divergence} | {' | '.join(cells)} |")
    lines += [
        "",
        "Processor seconds of one thread; one seed of the large set. Every dictionary is scored by "
        "the divergence per entry at converged activations, of the large set on "
        f"{N_SCORED:,} rows. `MiniBatchNMF` with batches of 1,024, without early stopping. "
        "Measured by `benchmarks/sparse.py`.",
    ]
    if "choice" in results:
        rows = results["choice"]
        near = sum(abs(row["chosen"] - row["components"]) <= 1 for row in rows)
        seconds = [row["seconds"] for row in rows]
        lines += [
            "",
            f"**The number of components**, 2,000 × 200 numbers of {TRUE_NUMBERS[0]} to "
            f"{TRUE_NUMBERS[-1]} components in noise, Kullback-Leibler and Frobenius: within one "
            f"of the true number in {near} of {len(rows)} cases, in {min(seconds):.0f} to "
            f"{max(seconds):.0f} s.",
        ]
    if "memory" in results:
        first, *_, last = results["memory"]["on_the_way"]
        lines += [
            "",
            f"**Memory** of a stream of sparse rows with {results['memory']['words']} words of "
            f"{SHAPE[1]:,} each: {first['MB']:.0f} MB after {first['rows']:,} rows, and "
            f"{last['MB']:.0f} MB after {last['rows']:,}.",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    kept, found = KEPT["sparse"], dict[str, Any]()
    if "ends" in options.only:
        cells = [(name, beta_loss) for name in SETS for beta_loss in PEERS]
        found["ends"] = [measure_ends(*cell, options.seeds) for cell in cells]
        found["n_seeds"] = options.seeds
    if "stream" in options.only:
        found["stream"] = [measure_stream(0)]
    if "choice" in options.only:
        cases = [(beta_loss, k) for beta_loss in PEERS for k in TRUE_NUMBERS]
        found["choice"] = [measure_choice(*case) for case in cases]
    if "memory" in options.only:
        found["memory"] = measure_memory()
    results = (kept.read() if (ROOT / kept.path).exists() else {}) | found
    kept.write(results, options.only)
    if {"ends", "stream"} <= results.keys():
        print(table(results))


if __name__ == "__main__":
    main()

"""The race is fair: every contestant learns, and all are scored by the same measure."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import spectrogram

import ondes

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "experiments")]

import peers  # noqa: E402
import race  # noqa: E402
import race_page  # noqa: E402
import standings  # noqa: E402
from standings import Curve  # noqa: E402

FRAMES = spectrogram(n_frames=300, n_bins=33, seed=1).astype(np.float32)
HELD_OUT = spectrogram(n_frames=100, n_bins=33, seed=1)
N_COMPONENTS = 4


def task(frames=FRAMES):
    first = peers.first_dictionary(frames, N_COMPONENTS, seed=0)
    return peers.Task(frames, first, seed=0, threads=1, warm=True)


def curve(*points):
    return Curve.of([(seconds, passes, divergence) for seconds, passes, divergence in points])


@pytest.mark.parametrize("name", peers.CONTESTANTS)
def test_every_contestant_learns_a_dictionary(name):
    package = peers.CONTESTANTS[name].package
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    kept = peers.run(name, task(), peers.Watch(budget_s=30, max_passes=5)).kept
    assert all(dictionary.shape == (N_COMPONENTS, 33) for _, _, dictionary in kept)
    first, last = (race.held_out_divergence(kept[at][2], FRAMES) for at in (0, -1))
    assert last < 0.999 * first
    seconds, passes = [point[0] for point in kept], [point[1] for point in kept]
    assert seconds == sorted(seconds)
    assert passes == sorted(passes)
    assert passes[-1] >= 5


@pytest.mark.parametrize("name", peers.CONTESTANTS)
def test_time_is_up_when_the_budget_is_spent(name):
    if importlib.util.find_spec(peers.CONTESTANTS[name].package) is None:
        pytest.skip(f"{peers.CONTESTANTS[name].package} is not installed")
    watch = peers.run(name, task(), peers.Watch(budget_s=0.05))
    assert watch.kept[-1][0] == watch.seconds >= 0.05


def test_the_default_learns_the_same_bits_as_fit():
    kept = peers.run("default", task(), peers.Watch(budget_s=60, max_passes=3)).kept
    fitted = ondes.OnlineNMF(N_COMPONENTS, random_state=0, n_passes=3).fit(peers.levelled(FRAMES))
    assert np.array_equal(kept[-1][2], fitted.components_.astype(np.float32))


def test_a_pass_of_calls_forgets_what_a_pass_of_the_paper_forgets():
    sizes = [1000, 1000, 1000, 234]
    forgotten = math.prod(peers.per_call(0.7, size, sum(sizes)) for size in sizes)
    assert forgotten == pytest.approx(0.7)
    rule = ondes.PerPass(0.7)
    for size in sizes:
        assert peers.per_call(0.7, size, 3234) == pytest.approx(rule.factor(0, size, 3234))


def test_the_scale_of_frames_and_bins_is_restored():
    """A peer gets scaled bins; the dictionary that it returns is for the frames as they are."""
    slanted = (FRAMES * np.geomspace(1e-4, 1e4, 33)).astype(np.float32)
    watch = peers.run("mu", task(slanted), peers.Watch(30, max_passes=30))
    plain = peers.run("mu", task(), peers.Watch(30, max_passes=30))
    reached = race.held_out_divergence(watch.kept[-1][2], slanted)
    assert reached == pytest.approx(race.held_out_divergence(plain.kept[-1][2], FRAMES), rel=0.1)


def test_the_score_is_the_divergence_at_converged_activations():
    dictionary = task().first
    total = 0.0
    for frame in HELD_OUT[:20]:
        h = np.full(N_COMPONENTS, frame.sum() / N_COMPONENTS)
        for _ in range(5000):
            y = h @ dictionary
            h = h * np.sqrt((dictionary @ (frame / y**2)) / (dictionary @ (1 / y)))
        y = h @ dictionary
        total += sum(v / x - math.log(v / x) - 1 for v, x in zip(frame, y, strict=True)) / 33
    assert race.held_out_divergence(dictionary, HELD_OUT[:20]) == pytest.approx(
        total / 20, abs=1e-3
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_an_invalid_dictionary_has_no_score(bad):
    dictionary = task().first.copy()
    dictionary[1, 2] = bad
    assert race.held_out_divergence(dictionary, HELD_OUT) is None


def test_a_component_of_zeros_is_left_out_of_the_score():
    dictionary = task().first
    dead = np.concatenate([dictionary, np.zeros((1, 33))])
    alive = race.held_out_divergence(dictionary, HELD_OUT)
    assert race.held_out_divergence(dead, HELD_OUT) == alive


def test_a_curve_is_straight_in_log_time():
    found = curve((1, 0, 4.0), (100, 2, 2.0))
    assert found.at(0.5) == np.inf
    assert found.at(10) == pytest.approx(3.0)
    assert found.at(1000) == 2.0
    assert found.seconds_to(3.0) == pytest.approx(10)
    assert found.seconds_to(5.0) == 1
    assert found.seconds_to(1.9) == np.inf
    assert found.first_pass_s == 100


def test_medians_over_seeds_allow_runs_that_diverge():
    runs = [curve((1, 1, 1.0)), curve((1, 1, 3.0)), curve((1, 1, None))]
    assert standings.at(runs, 2) == 3.0
    assert standings.seconds_to(runs, 1.0) == np.inf


def test_losses_count_from_the_first_pass_on():
    ours = [curve((1, 0.5, 3.0), (2, 1, 2.0), (4, 2, 1.0))]
    early = [curve((1, 1, 1.5), (1.5, 2, 1.4))]  # lower at 2 s, level afterwards
    assert [moment.seconds for moment in standings.losses(ours, early)] == [2]
    assert standings.losses(ours, [curve((3, 1, 1.5), (4, 2, 1.01))]) == []
    late = standings.losses(ours, [curve((4, 1, 1.5), (8, 2, 0.9))])
    assert [moment.seconds for moment in late] == [8]
    assert late[0].share == pytest.approx(0.1)


def results(default, minibatch, yardstick):
    about = {"size": "medium", "kind": "music", "n_components": 16, "threads": 1, "seed": 0}
    runs = [
        {**about, "contestant": name, "budget_s": 2.0, "max_passes": None, "points": points}
        for name, points in (("default", default), ("minibatch", minibatch))
    ]
    long = {"contestant": "minibatch", "budget_s": 60.0, "max_passes": 200, "plain": True}
    return {"runs": [*runs, {**about, **long, "points": yardstick}]}


def test_verdicts_of_made_up_runs():
    default = [[0.01, 1, 1.0], [1.0, 50, 0.8]]
    found = results(default, [[0.1, 1, 2.0], [2.0, 9, 1.6]], [[0.1, 1, 2.0], [4.0, 200, 1.0]])
    assert list(race_page.lost(found)) == []
    (yardstick,) = race_page.yardsticks(found)
    assert yardstick.sooner == pytest.approx(400)
    assert yardstick.lower == pytest.approx(0.2)
    (heat,) = race_page.heats(found)
    assert heat.sooner("minibatch") == pytest.approx(200)
    assert heat.lower("minibatch") == pytest.approx(0.5)
    behind = results(default, [[0.1, 1, 2.0], [2.0, 9, 0.7]], [[4.0, 200, 1.0]])
    ((_, peer, moments),) = race_page.lost(behind)
    assert peer == "minibatch"
    assert max(moment.share for moment in moments) == pytest.approx(1 - 0.7 / 0.8)


@pytest.mark.parametrize("size", race_page.SIZES)
def test_a_race_of_one_size_has_no_cells_of_others(size):
    assert {cell.size for cell in race.Settings(sizes=(size,)).cells} == {size}
    whole = [cell for cell in race.Settings().cells if cell.size == size]
    assert race.Settings(sizes=(size,)).cells == whole


def test_a_race_of_some_sets_keeps_the_runs_of_the_others():
    def raced(sizes, divergence, date):
        runs = [{"size": size, "points": [[1.0, 1, divergence]]} for size in sizes]
        return {"settings": {"sizes": sizes, "n_seeds": 5}, "machine": {"date": date}, "runs": runs}

    new, old = raced(["small"], 1.0, "now"), raced(["small", "medium", "large"], 2.0, "before")
    merged = race.with_earlier(new, old)
    assert [(run["size"], run["points"][0][2]) for run in merged["runs"]] == [
        ("small", 1.0),
        ("medium", 2.0),
        ("large", 2.0),
    ]
    assert merged["machine"] == {"date": "now"}

"""The code of the experiments: recorded runs, verdicts, and the page; nothing is timed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import spectrogram

import ondes
from ondes.demo_scene import make_scene

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))

import comparison
import confirm
import curves
import figures
import grid
import grid_report
import growth
import kept
import large
import large_report
import result_pages
import small
import verdicts
from comparison import Spread
from curves import Run
from outputs import Outputs
from recordings import Recordings

ROOT = Path(__file__).parent.parent
LONG = 600.0  # seconds, more than any run here takes


# ---- recorded runs ----


def test_a_recorded_fit_learns_the_same_bits_as_a_plain_one():
    frames = spectrogram()
    settings = {"n_components": 4, "random_state": 0, "n_passes": 3, "batch_size": 50}
    warm = settings | {"restarts": "warm"}
    for model in (ondes.OnlineNMF(**settings), ondes.OnlineNMF.paper(**warm)):
        first, *_, last = curves.watch(model, frames, LONG)
        np.testing.assert_array_equal(first.dictionary, model.initialise(frames).components_)
        np.testing.assert_array_equal(last.dictionary, model.fit(frames).components_)
        assert (first.n_frames, last.n_frames) == (0, 3 * len(frames))


def test_the_curve_of_all_frames_without_memory_is_that_of_batch():
    frames, held_out = spectrogram(n_frames=300), spectrogram(n_frames=360)[300:]
    common = {
        "n_components": 4,
        "init": curves.first_dictionary(frames, 4, seed=1),
        "n_passes": 8,
        "random_state": 0,
    }
    batch = ondes.OnlineNMF.batch(**common)
    online = ondes.OnlineNMF.paper(batch_size=len(frames), r=0.0, restarts="warm", **common)
    names = {"n_frames": len(frames), "seed": 1}
    batch, online = (
        curves.record(model, frames, held_out, LONG, algorithm=name, **names)
        for name, model in {"batch": batch, "online": online}.items()
    )
    first = dict(zip(batch.visited, batch.divergence, strict=True))
    other = dict(zip(online.visited, online.divergence, strict=True))
    assert {0, 8 * len(frames)} <= first.keys() & other.keys()
    for visited in first.keys() & other.keys():
        assert first[visited] == pytest.approx(other[visited], rel=1e-5)
    assert batch.end < 0.9 * batch.curve[0]


def test_a_curve_holds_the_score_of_each_dictionary():
    frames, held_out = spectrogram(n_frames=300), spectrogram(n_frames=360)[300:]
    model = ondes.OnlineNMF(3, random_state=0, n_passes=2)
    recorded = curves.record(model, frames, held_out, LONG, algorithm="a", n_frames=300, seed=0)
    assert recorded.curve[0] == pytest.approx(-model.initialise(frames).score(held_out), rel=1e-5)
    assert recorded.end == pytest.approx(-model.fit(frames).score(held_out), rel=1e-5)
    assert recorded.backend == model.backend_


def test_a_run_ends_with_the_first_update_after_its_time():
    model = ondes.OnlineNMF(3, random_state=0, batch_size=50)
    snapshots = curves.watch(model, spectrogram(), seconds=0.0)
    assert [snapshot.n_frames for snapshot in snapshots] == [0, 50]


def test_held_out_frames_share_no_samples_with_training_frames():
    numbers = np.arange(1000)[:, None]
    train, held_out = curves.every_fifth_second(numbers, per_second=43)
    assert np.abs(train - held_out.T).min() == 2
    assert len(train) + len(held_out) == 1000 - 4 * 2  # four seconds are held out, two edges each
    assert len(held_out) == 4 * (43 - 2)


def test_the_algorithms_are_those_of_the_paper():
    frames = spectrogram().astype(np.float32)
    settings = replace(small.SETTINGS, n_components=3)
    for model, names in grid.contestants(settings, frames, seed=0):
        if names["algorithm"] == "default":
            assert (
                model.get_params()
                == ondes.OnlineNMF(
                    3, random_state=0, n_jobs=1, n_passes=curves.ENDLESS
                ).get_params()
            )
        else:
            assert (model.restarts, model.solver) == ("warm", ondes.Solver.paper(1))
            np.testing.assert_array_equal(model.init, curves.first_dictionary(frames, 3, 0))
    subsets = replace(large.SETTINGS, n_components=3, subsets=(50, None), buffer=100)
    models = {
        (names["algorithm"], names["n_frames"]): (model, given)
        for model, given, names in large.contestants(subsets, frames, seed=0)
    }
    paper, buffers = models["online", len(frames)]
    assert (paper.restarts, paper.solver) == ("fresh", ondes.Solver.paper(100))
    assert [len(buffer) for buffer in buffers] == [100] * 4
    assert models.keys() == {("default", 400), ("online", 400), ("batch", 50), ("batch", 400)}


# ---- curves ----


def made_up(curve, seconds=None, visited=None, **names):
    seconds = [0.01 * 2**n for n in range(len(curve))] if seconds is None else seconds
    visited = [100 * n for n in range(len(curve))] if visited is None else visited
    names = {"algorithm": "online", "n_frames": 100, "seed": 0} | names
    return Run(seconds=seconds, visited=visited, divergence=list(curve), **names)


@pytest.mark.parametrize(
    ("curve", "unstable"),
    [
        ([3.0, 2.0, 1.0, 1.04], False),
        ([3.0, 2.0, 1.0, 1.06, 1.0], True),
        ([3.0, 9.0, 1.0, 0.9], False),  # the rise is over before every frame was visited
        ([3.0, 2.0, None, 1.0], True),
        ([3.0, 2.0, 1.0, 1e12], True),
    ],
)
def test_unstable_is_a_rise_after_the_first_pass(curve, unstable):
    visited = [0, 50, 100, 150, 200][: len(curve)]
    assert comparison.is_unstable(made_up(curve, visited=visited)) == unstable


def test_a_spread_summarises_several_seeds():
    runs = [made_up([4.0, last], seconds=[0.01, 1.0]) for last in (1.0, 3.0, None)]
    spread = Spread.of(runs)
    assert (spread.end, spread.low[-1], spread.high[-1]) == (3.0, 1.0, np.inf)
    assert spread.seconds_to(3.5) == 1.0
    assert spread.seconds_to(2.9) is None
    assert comparison.best_seed(runs).end == 1.0


def test_a_curve_that_still_falls_says_by_how_much():
    falling = Spread.of([made_up([4.0, 2.0, 1.5], seconds=[0.01, 1.0, 10.0])])
    assert falling.last_half == pytest.approx(0.25)
    assert comparison.fallen([made_up([4.0, 2.0, 2.0], seconds=[0.01, 1.0, 10.0])]) == "0.0%"


def test_times_faster_counts_to_the_level_that_batch_ends_at():
    batch = [made_up([4.0, 3.0, 2.0], seconds=[0.01, 1.0, 10.0])]
    early = [made_up([4.0, 2.01, 1.0], seconds=[0.01, 0.1, 10.0])]
    never = [made_up([4.0, 3.0, 2.5], seconds=[0.01, 0.1, 10.0])]
    assert comparison.times_faster(batch, early) == pytest.approx(
        100, rel=0.3
    )  # to the nearest mark
    assert comparison.times_faster(batch, never) == 0


# ---- verdicts ----


def grid_results(end, unstable=lambda beta, r: False, batch=1.0, default=0.9, passes=10):
    """Curves that fall from 3 to their end in two steps; N is 1034."""
    settings = replace(small.SETTINGS, seeds=(0,), rs=(0.0, 0.7, 1.0))
    last = passes * 1034
    names = {"n_frames": 1034, "visited": [0, last // 2, last], "seconds": [0.001, 0.5, 1.0]}

    def run(value, rises=False, **which):
        return asdict(made_up([3.0, value, 2 * value if rises else value], **names, **which))

    runs = [run(batch, algorithm="batch"), run(default, algorithm="default")]
    runs += [
        run(end(beta, r), unstable(beta, r), beta=beta, r=r)
        for beta in (1, 10, 100, 1000, 1034)
        for r in settings.rs
    ]
    return {"settings": asdict(settings), "n_train": 1034, "batch_identity": 1e-7, "runs": runs}


def test_verdicts_where_the_paper_is_right():
    right = comparison.Grid(
        grid_results(lambda beta, r: 2.0 if r == 1 else 1.0, lambda beta, r: beta == 1 and r < 1)
    )
    for decide in (
        verdicts.online_becomes_batch,
        verdicts.smallest_beta_is_unstable,
        verdicts.large_beta_is_stable,
        verdicts.no_forgetting_is_stable,
        verdicts.forgetting_is_crucial,
        verdicts.competes_on_short_signals,
    ):
        assert decide(right)[0] == verdicts.HOLDS, decide.__name__
    assert verdicts.high_r_is_stable(right)[0] == verdicts.IN_PART  # r = 0.7 is not, at β = 1


def test_verdicts_where_the_paper_is_wrong():
    wrong = comparison.Grid(grid_results(lambda beta, r: 1.1 + r / 2, lambda beta, r: r == 1))
    for decide in (
        verdicts.smallest_beta_is_unstable,
        verdicts.no_forgetting_is_stable,
        verdicts.competes_on_short_signals,
        verdicts.faster_on_short_signals,
        verdicts.orders_of_magnitude,
    ):
        assert decide(wrong)[0] == verdicts.FAILS, decide.__name__
    assert verdicts.forgetting_is_crucial(wrong)[0] == verdicts.IN_PART
    assert verdicts.high_r_is_stable(wrong)[0] == verdicts.IN_PART


def longer(results, name="medium"):
    """The same curves of a set of ten times as many frames, where β = 10³ is no batch."""
    settings = results["settings"] | {"name": name, "betas": [1, 10, 100, 1000, 10340]}
    runs = [
        run
        | {"n_frames": 10340, "visited": [10 * n for n in run["visited"]]}
        | {"beta": 10340 if run["beta"] == 1034 else run["beta"]}
        for run in results["runs"]
    ]
    return results | {"settings": settings, "n_train": 10340, "runs": runs}


@pytest.mark.parametrize(
    ("on_small", "on_medium", "verdict"),
    [(1.0, 1.0, verdicts.HOLDS), (1.0, 2.0, verdicts.FAILS), (2.0, 1.0, verdicts.HOLDS)],
)
def test_the_papers_choice_is_judged_where_it_is_no_batch(on_small, on_medium, verdict):
    """On the small set, β = 1,000 has one update a pass."""
    sets = [
        comparison.Grid(longer(found) if name == "medium" else found)
        for name, end in (("small", on_small), ("medium", on_medium))
        for found in [grid_results(lambda beta, r, end=end: end if beta == 1000 else 1.0)]
    ]
    found, reason = verdicts.the_papers_choice_satisfies(*sets)
    assert found == verdict
    assert "small set, not counted" in reason


def test_stability_is_judged_on_both_sets():
    """One set where no β ≤ N/2 is large enough at r = 0, and one where 100 is."""
    small_set = comparison.Grid(
        grid_results(lambda *_: 1.0, lambda beta, r: r == 0 and beta < 1000)
    )
    medium_set = comparison.Grid(
        longer(grid_results(lambda *_: 1.0, lambda beta, r: r == 0 and beta < 100))
    )
    found, reason = verdicts.large_beta_is_stable(small_set, medium_set)
    assert found == verdicts.IN_PART
    assert reason == (
        "small set, r = 0: no β ≤ N/2 is large enough; medium set, r = 0: stable from β = 100 on"
    )
    assert verdicts.large_beta_is_stable(medium_set)[0] == verdicts.HOLDS
    rising = comparison.Grid(grid_results(lambda *_: 1.0, lambda beta, r: r == 1))
    assert verdicts.no_forgetting_is_stable(small_set, medium_set)[0] == verdicts.HOLDS
    assert verdicts.no_forgetting_is_stable(medium_set, rising)[0] == verdicts.IN_PART


def test_who_is_late_at_batchs_level_competes_in_part():
    late = grid_results(lambda beta, r: 1.0)
    for run in late["runs"]:
        if run["algorithm"] == "batch":
            run["seconds"] = [0.001, 0.1, 1.0]
    found, reason = verdicts.competes_on_short_signals(comparison.Grid(late))
    assert (found, "is 0.19 × as fast" in reason) == (verdicts.IN_PART, True), reason


def test_forgetting_is_not_crucial_where_one_competes_without():
    both = comparison.Grid(grid_results(lambda beta, r: 1.02 if r == 1 else 1.0))
    assert verdicts.forgetting_is_crucial(both)[0] == verdicts.IN_PART


@pytest.mark.parametrize(("lower", "verdict"), [(0.9, verdicts.HOLDS), (0.99, verdicts.FAILS)])
def test_a_hundredth_lower_is_no_use_of_redundancy(lower, verdict):
    grid_of = comparison.Grid(grid_results(lambda beta, r: 1.0 if beta == 1034 else lower))
    assert verdicts.small_beta_uses_redundancy(grid_of)[0] == verdict


def large_results(paper_end, paper_seconds):
    settings = asdict(replace(large.SETTINGS, online=((1000, 0.7),)))
    runs = [
        made_up([3.0, 2.0, 1.0], [0.001, 10.0, 20.0], algorithm="batch", n_frames=1_000),
        made_up([3.0, 2.0, 1.0], [0.001, 10.0, 20.0], algorithm="batch", n_frames=100_000),
        made_up([3.0, 0.8, 0.8], [0.001, 0.1, 20.0], algorithm="default", n_frames=200_000),
        made_up(
            [3.0, paper_end, paper_end],
            [0.001, paper_seconds, 20.0],
            n_frames=200_000,
            beta=1000,
            r=0.7,
        ),
    ]
    return {
        "settings": settings,
        "minutes": 99,
        "n_train": 200_000,
        "runs": [asdict(run) for run in runs],
    }


@pytest.mark.parametrize(
    ("end", "seconds", "accurate", "orders"),
    [
        (0.9, 0.1, verdicts.HOLDS, verdicts.HOLDS),
        (0.9, 1.0, verdicts.HOLDS, verdicts.IN_PART),
        (0.9, 6.0, verdicts.HOLDS, verdicts.FAILS),
        (0.9, 19.0, verdicts.IN_PART, verdicts.FAILS),
        (1.5, 0.1, verdicts.FAILS, verdicts.FAILS),
    ],
)
def test_verdicts_on_the_large_set(end, seconds, accurate, orders):
    compared = comparison.Large(large_results(end, seconds))
    assert verdicts.more_accurate_in_a_fraction(compared)[0] == accurate
    assert verdicts.orders_on_large(compared)[0] == orders


# ---- from a recording to the page ----


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A quick small experiment on a synthetic scene, in place of the track."""
    folder = tmp_path_factory.mktemp("experiment")
    soundfile.write(folder / "tune.wav", make_scene(10.0, 11025, random_state=0).mixture, 11025)
    frames = small.QUICK.frontend.frames(Recordings(folder).excerpt)
    settings = replace(small.QUICK, end_s=10, start_s=0, n_components=3, seconds=0.02)
    outputs = Outputs(folder / "quick", folder / "quick" / "results")
    results = grid.run(settings, frames, recording="tune")
    outputs.write("small", results)
    grid_report.draw(results, outputs.figures)
    return outputs


def test_results_are_json_and_state_their_conditions(outputs):
    results = json.loads((outputs.results / "small.json").read_text())
    assert len(results["runs"]) == 2 + len(small.QUICK.betas) * len(small.QUICK.rs)
    assert results["machine"].keys() >= {"backend", "cpu", "cores", "threads"}
    assert results["batch_identity"] < 1e-3
    text = grid_report.section(results)
    for stated in ("K = 3", "11025 Hz", "60 dB", "every fifth second", "one thread"):
        assert stated in text
    assert "nan" not in text


def test_a_page_shows_what_was_measured_and_leaves_out_the_rest(outputs):
    results = json.loads((outputs.results / "small.json").read_text())
    written = result_pages.whole_pages({"small": results})
    assert written.keys() == {"paper", ""}
    text = written["paper"]
    assert text.startswith("# Does the paper hold?\n\nOf ")
    assert text.index("The paper's claims") < text.index("Thirty seconds")
    assert "Four minutes" not in text
    (measured,) = results["measured"].values()
    assert f"Measured with commit {measured['commit']}, {measured['date']}." in text
    for line in text.splitlines():
        if "](../figures/" in line:
            name = line.split("](../figures/")[1].split(")")[0]
            assert (outputs.figures / name).stat().st_size < 120_000
    assert "results/paper.md" in written[""]


def test_a_broken_experiment_goes_on_where_it_was(tmp_path):
    settings = replace(small.SETTINGS, seconds=0.01, seeds=(0,), rs=(0.7,), betas=(100,))
    path, frames = tmp_path / "runs.jsonl", spectrogram()

    def run(conditions, seeds):
        journal = curves.Journal(path, conditions)
        return grid.run(replace(settings, seeds=seeds), frames, 1, journal)["runs"]

    first = run({"code": 1}, (0,))
    header, *rows = path.read_text().splitlines()
    assert [json.loads(row) for row in rows] == first
    path.write_text("\n".join([header, rows[0], rows[2]]) + "\n")
    again = run({"code": 1}, (0, 1))
    assert (again[0], again[2]) == (first[0], first[2])
    assert again[1]["seconds"] != first[1]["seconds"]
    assert [each["seed"] for each in again] == [0] * 3 + [1] * 3
    assert run({"code": 2}, (0,))[0]["seconds"] != first[0]["seconds"]
    assert len(path.read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize(("length_s", "expected"), [(100, (60, 90)), (70, (40, 70)), (20, (0, 20))])
def test_the_excerpt_of_any_recording_is_as_long_as_it_can_be(tmp_path, length_s, expected):
    noise = np.random.default_rng(0).normal(size=(length_s * 11025, 2)) * 0.1
    soundfile.write(tmp_path / "mine.wav", noise, 11025)
    for given in (tmp_path, tmp_path / "mine.wav"):
        frames, about = grid.excerpt(small.SETTINGS, Recordings(given))
        assert (about["start_s"], about["end_s"]) == expected
        assert about["recording"] == "mine"
        whole = grid.Frontend().frames(tmp_path / "mine.wav", *expected)
        np.testing.assert_array_equal(frames, whole)


def test_of_few_recordings_every_fifth_second_is_held_out(tmp_path):
    noise = np.random.default_rng(0).normal(size=(20 * 11025,)) * 0.1
    for n_recordings in (1, 5):
        for number in range(n_recordings):
            soundfile.write(tmp_path / f"{number}.wav", noise, 11025)
        settings = replace(large.QUICK, subsets=(100,), seconds=0.01, n_components=3)
        train, held_out, about = large.frames(settings, Recordings(tmp_path))
        assert about["n_other_tracks"] == (0 if n_recordings == 1 else 1)
        assert len(train) > 600
        assert len(held_out) > 100
        assert len(np.unique(np.concatenate([train, held_out]), axis=0)) > 800
    results = large.run(settings, train, held_out, **about)
    text = large_report.section(results)
    assert "1 other tracks" in text


# ---- what is kept ----


def test_figures_show_the_kept_results(tmp_path):
    results = result_pages.kept_results()
    result_pages.draw(results, tmp_path)
    drawn = {path.name: figures.shown(path) for path in tmp_path.iterdir()}
    folder = ROOT / "docs" / "figures"
    shown = {path.name: figures.shown(path) for path in folder.glob("*.svg")}
    assert shown == drawn, "make figures"
    without = {"gpu_arrays"}  # and those whose picture is of a part that was not measured
    without |= {name for name in {"growth"} & results.keys() if not growth.picture(results[name])}
    assert len(set(drawn.values())) == len(results.keys() & result_pages.DRAWN.keys() - without)
    for text in result_pages.expected(results).values():
        for name in re.findall(r"figures/([\w-]+\.svg)", text):
            assert name in shown


def test_what_few_results_run_makes_no_other_result_older(tmp_path, monkeypatch):
    """A file and a folder that one result names, and another one's folder contains."""
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    for name in ("code/step.py", "code/device.py", "code/cluster/rounds.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\n")
    few = ("code/device.py", "code/cluster")
    monkeypatch.setattr(kept, "LEFT_OUT", few)
    every = [("code",), ("code", few[0]), ("code", few[1])]
    for changed, differ in (
        ("code/step.py", [True, True, True]),
        ("code/device.py", [False, True, False]),
        ("code/cluster/rounds.py", [False, False, True]),
    ):
        before = [kept.Kept("", sources, "").digest for sources in every]
        (tmp_path / changed).write_text(f"a = {changed!r}\n")
        after = [kept.Kept("", sources, "").digest for sources in every]
        assert [one != other for one, other in zip(before, after, strict=True)] == differ


def test_what_is_left_out_of_digests_is_there():
    assert all((ROOT / path).exists() for path in kept.LEFT_OUT)


GROWTH = {
    "case": [
        {"command": name, "sr": sr, "seconds": 2.0, "x_real_time": 300, "cores_busy": 1.9,
         "peak_mb": 200}
        for name in growth.CASE
        for sr in (44100, 48000)
    ],
    "hours": [
        {"format": "ogg", "size": size, "seconds": 8 * size, "x_real_time": 450, "peak_mb": 190}
        for size in (0.5, 1.0, 3.0, 6.0)
    ],
    "recordings": [
        {"size": size, "seconds": size / 100, "x_real_time": 100, "peak_mb": 150}
        for size in (1_000, 10_000)
    ],
    "components": [
        {"command": name, "size": size, "seconds": 1.0, "x_real_time": 600, "peak_mb": 99}
        for name in ("learn", "separate")
        for size in (8, 32)
    ],
    "cores": [
        {"command": name, "size": n, "x_real_time": 100 * n}
        for name in ("learn", "separate")
        for n in (1, 2)
    ],
}  # fmt: skip


@pytest.mark.parametrize("measured", [(name,) for name in GROWTH] + [(), tuple(GROWTH)], ids=str)
def test_pages_of_growth_have_the_parts_that_were_measured(measured, tmp_path):
    results = {name: GROWTH[name] for name in measured} | {"n_jobs": 2}
    results["measured"] = dict.fromkeys(measured, kept.KEPT["growth"].provenance())
    said = {
        "case": "learned from in 2.0 s", "hours": "Up to 6 hours, time grows with the length to "
        "the power of 1.00", "recordings": "| recordings of one second | 1000 | 10000 | 1.00 |",
        "components": "| components, learn | 8 | 32 | 0.00 |", "cores": "| 2 | 200 | 200 |",
    }  # fmt: skip
    texts = result_pages.expected({"growth": results} if measured else {})
    page = texts.get("docs/results/scale.md", "")
    for name, text in said.items():
        assert (text in page) == (name in measured)
    assert ("growth.svg" in page) == ("hours" in measured)
    growth.draw(results, tmp_path)
    assert (tmp_path / "growth.svg").exists() == ("hours" in measured)
    assert ("| `ondes learn` | 2.0 s |" in texts["docs/speed.md"]) == ("case" in measured)
    assert ("learns from 6 h of audio in 48 s" in texts["README.md"]) == ("hours" in measured)
    assert "nan" not in page


def test_a_result_that_was_not_measured_leaves_nothing_on_a_page():
    pages = result_pages.expected({})
    assert {"README.md", "docs/speed.md", "docs/live.md"} <= pages.keys()
    for path, text in pages.items():
        for body in re.findall(r"<!-- [^>]*: begin -->(.*?)<!-- ", text, re.DOTALL):
            assert body == "\n", path


def test_pages_say_what_measured_older_code(outputs):
    results = json.loads((outputs.results / "small.json").read_text())
    measured = results["measured"]["all"]
    pages = result_pages.whole_pages({"small": results})
    assert "later changes of the code" not in pages["paper"]
    assert f"| {measured['date']} |" in pages[""]
    results["measured"] = {"all": measured | {"digest": None}}
    pages = result_pages.whole_pages({"small": results})
    beginning = pages["paper"].partition("![")[0]
    assert "later changes of the code" in beginning
    assert f"{measured['date']}; the code has changed since then." in pages["paper"]
    assert f"| {measured['date']}, older code |" in pages[""]
    here, there = kept.KEPT["growth"].provenance(), {"commit": "abc", "date": "2026-01-02"}
    growth_of = {"measured": {"case": here, "hours": measured | there | {"digest": None}}}
    assert kept.KEPT["growth"].stated(growth_of) == (
        f"Measured with commit {here['commit']}, {here['date']} (case); commit abc, 2026-01-02 "
        "(hours); the code has changed since then (hours)."
    )


def test_the_present_code_confirms_what_it_measured_and_nothing_else(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "tune.wav", make_scene(10.0, 11025, random_state=0).mixture, 11025)
    recordings = Recordings(tmp_path)
    how = {"end_s": 10, "start_s": 0, "n_components": 3, "seconds": 0.05, "seeds": (0, 1)}
    settings = replace(small.QUICK, **how)
    frames, about = grid.excerpt(settings, recordings)
    measured = json.loads(json.dumps(grid.run(settings, frames, **about)))
    monkeypatch.setattr(confirm, "SHARE", 1.0)

    def differences(results):
        every, held_out = confirm.contestants("small", results, recordings)
        return list(confirm.differences(results, every, held_out))

    assert differences(measured) == []
    other = json.loads(json.dumps(measured))
    other["runs"][1]["divergence"][-1] *= 1.001
    (found,) = differences(other)
    assert found.startswith("{'algorithm': 'batch'")
    del other["runs"][1]
    assert differences(other)[0].endswith("was not measured")
    monkeypatch.setattr(ondes.Solver, "paper", lambda n_steps: ondes.Solver(n_steps))
    changed = differences(measured)
    assert len(changed) == len(settings.betas) * len(settings.rs) + 1  # all but the default


def test_the_large_set_is_confirmed_too(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).normal(size=(5, 20 * 11025)) * 0.1
    for number, samples in enumerate(noise):
        soundfile.write(tmp_path / f"{number}.wav", samples, 11025)
    settings = replace(large.QUICK, subsets=(100, 1000), seconds=0.05, n_components=3)
    train, held_out, about = large.frames(settings, Recordings(tmp_path))
    measured = json.loads(json.dumps(large.run(settings, train, held_out, **about)))
    found = confirm.contestants("large", measured, Recordings(tmp_path))
    assert list(confirm.differences(measured, *found)) == []


def test_what_a_run_did_not_measure_keeps_what_measured_it(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    code = tmp_path / "step.py"
    code.write_text("a = 1\n")
    result = kept.Kept("steps.json", ("step.py",), "python steps.py")
    result.write({"song": 1, "hours": 2})
    code.write_text("a = 2\n")
    result.write({"song": 3, "hours": 2}, ["song"])
    assert result.older_parts() == ["others"]
    result.write({"song": 3, "hours": 4}, ["hours"])
    assert result.older_parts() == []
    assert result.read()["measured"].keys() == {"song", "hours"}


def test_the_page_of_live_sound_has_what_was_measured():
    row = {"buffer_ms": 10, "beside": False, "seconds": 60, "late_ms": [20, 21, 22], "load": 0.1,
           "missing_ms": 0}  # fmt: skip
    found = {"devices": [row], "measured": {"devices": kept.KEPT["live"].provenance()}}
    text = result_pages.expected({"live": found})["docs/live.md"]
    assert "| 10 ms | 21 ms | 10 % | 0 ms | 1.0 min |" in text
    assert "late by" not in text


def test_what_was_confirmed_is_not_older(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    (tmp_path / "step.py").write_text("a = 1\n")
    result = kept.Kept("steps.json", ("step.py",), "python steps.py")
    path = result.write({"rows": [1, 2], "n": 3})
    (tmp_path / "step.py").write_text("a = 1.0\n")
    before = path.read_text().splitlines()
    assert result.older_parts() == ["all"]
    result.confirm()
    assert result.older_parts() == []
    assert path.read_text().splitlines()[2:] == before[2:]
    assert ", and confirmed with commit " in result.stated(result.read())
    (tmp_path / "step.py").write_text("a = 2\n")
    assert result.older_parts() == ["all"]
    (tmp_path / "step.py").write_text("a = 1\n")
    assert result.older_parts() == []


def test_a_commit_has_a_plus_only_where_a_source_has_changed(tmp_path, monkeypatch):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.delenv("ONDES_COMMIT", raising=False)
    for name in ("step.py", "page.py"):
        (tmp_path / name).write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    steps, pages = (kept.Kept("", (name,), "") for name in ("step.py", "page.py"))
    (tmp_path / "page.py").write_text("a = 2\n")
    commits = [each.provenance()["commit"] for each in (steps, pages)]
    assert re.fullmatch(r"[0-9a-f]{9}", commits[0])
    assert commits[1] == f"{commits[0]}+"


def test_pages_have_the_figures_of_the_kept_results():
    for path, text in result_pages.expected(result_pages.kept_results()).items():
        assert (ROOT / path).read_text() == text, f"{path} differs: make figures"


def test_every_kept_result_is_known_and_says_what_measured_it():
    files = [*ROOT.glob("benchmarks/results/*.json"), *ROOT.glob("experiments/results/*.json")]
    known = {each.path for each in kept.KEPT.values()}
    assert {str(path.relative_to(ROOT)) for path in files} <= known
    for path in files:
        for part in json.loads(path.read_text())["measured"].values():
            known = {"version", "commit", "date", "machine", "digest"}
            for each in (part, part.get("confirmed", part)):
                assert each.keys() - {"confirmed"} == known
    for each in kept.KEPT.values():
        assert all((ROOT / source).exists() for source in each.sources), each.path


def test_a_result_is_older_once_its_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    code = tmp_path / "code" / "step.py"
    code.parent.mkdir()
    code.write_text("a = 1\n")
    (tmp_path / "code" / "notes.txt").write_text("not code")
    result = kept.Kept("results/steps.json", ("code",), "python steps.py")
    monkeypatch.setattr(kept, "KEPT", {"steps": result})
    assert kept.report() == "results/steps.json is missing: python steps.py"
    result.write({"rows": [1, 2]}, ["first", "second"])
    assert kept.report() == "nothing is older than the code"
    code.write_text("a = 2\n")
    result.write(result.read() | {"rows": [1, 3]}, ["second"])
    assert result.older_parts() == ["first"]
    assert kept.report() == "results/steps.json (first) is older than the code: python steps.py"
    assert result.read()["rows"] == [1, 3]
    code.rename(code.with_name("stride.py"))
    assert result.older_parts() == ["first", "second"]


def test_comments_and_docstrings_make_no_result_older(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    source = tmp_path / "source.py"

    def digest_of(text):
        source.write_text(text)
        return kept.digest(("source.py",))

    before = digest_of('def f(x):\n    """Twice."""\n    return 2 * x\n')
    assert digest_of("def f(x):  # doubled\n\n    return 2 * x\n") == before
    assert digest_of("def f(x):\n    return 3 * x\n") != before
    assert digest_of("def f(x):\n  return 2 * x\n") != before
    assert digest_of('def f(x):\n    return """Twice."""\n') != before


def test_runs_at_a_time_are_those_one_after_the_other():
    settings = replace(small.SETTINGS, seconds=0.01, seeds=(0, 1), rs=(0.7,), betas=(100,))
    frames = spectrogram()
    alone, together = (grid.run(settings, frames, n_jobs)["runs"] for n_jobs in (1, 3))
    for one, other in zip(alone, together, strict=True):
        names = ("algorithm", "beta", "r", "seed", "n_frames")
        assert [one[name] for name in names] == [other[name] for name in names]
        assert one["divergence"][0] == other["divergence"][0]

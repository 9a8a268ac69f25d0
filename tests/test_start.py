"""Commands load no large package that they do not use: each takes its time and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sklearn.base import clone

import ondes
from ondes.nmf.learner import DictionaryLearner

HEAVY = ("sklearn", "pandas", "pyarrow", "torch", "matplotlib", "scipy", "joblib")
SMALL = {"n_components": 4, "sr": 8000, "n_fft": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32)
    soundfile.write(folder / "a.wav", sound, 8000)
    soundfile.write(folder / "b.wav", sound[:8000] ** 2, 8000)
    for name in ("a", "b"):
        ondes.learn(folder / f"{name}.wav", **SMALL).save(folder / f"{name}.ondes")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "learn a.wav -k 4 --sr 8000 --n-fft 128 -o new.ondes",
        "learn a.wav --continue a.ondes -o more.ondes",
        "separate a.wav -d a.ondes -d b.ondes --adapt b -o stems",
        "levels a.wav -d a.ondes -o a.csv",
        "denoise a.wav --noise b.wav -d a.ondes",
        "score a.wav -d a.ondes",
        "info a.ondes",
    ],
)
def test_a_command_loads_no_package_that_it_does_not_use(folder, command):
    script = (
        "import sys, ondes.cli\n"
        f"try: ondes.cli.main({command.split()!r})\n"
        f"except SystemExit as end: print(end.code, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr


def test_what_a_dictionary_has_learned_becomes_an_estimator_of_scikit_learn(folder):
    dictionary = ondes.load(folder / "a.ondes")
    learner = dictionary.learner
    assert type(learner) is DictionaryLearner
    names, state = learner.get_params(), learner.state()
    estimator = dictionary.estimator
    assert type(estimator) is ondes.OnlineNMF
    assert dictionary.estimator is estimator is dictionary.learner
    assert estimator.get_params() == names
    assert list(clone(estimator).get_params()) == list(names)
    np.testing.assert_array_equal(estimator.components_, state.components)
    one = ondes.learn(folder / "b.wav", dictionary=dictionary)
    twin = ondes.learn(folder / "b.wav", dictionary=ondes.load(folder / "a.ondes"))
    assert type(twin.learner) is DictionaryLearner
    estimator = one.estimator
    assert estimator.n_frames_seen_ == twin.learner.n_frames_seen_ > state.n_frames_seen
    np.testing.assert_array_equal(estimator.components_, twin.components)


@pytest.mark.parametrize("kind", [DictionaryLearner, ondes.OnlineNMF])
def test_a_learner_checks_what_it_is_given(kind):
    frames = np.random.default_rng(0).exponential(size=(50, 6))
    learner = kind(2, random_state=0)
    with pytest.raises(ValueError, match=r"not been learned yet|not fitted yet"):
        learner.transform(frames)
    learner.fit(frames)
    for wrong in (frames[0], frames[:0], frames[:, :5], -frames, frames + np.inf):
        with pytest.raises(ValueError, match=r"\w"):
            learner.transform(wrong)
    np.testing.assert_array_equal(
        learner.transform(np.asfortranarray(frames)), learner.transform(frames)
    )
    with pytest.raises(ValueError, match="parameter 'colour'"):
        learner.set_params(colour=1)


def test_a_learner_with_other_parameters_has_learned_the_same():
    frames = np.random.default_rng(0).exponential(size=(50, 6))
    learner = DictionaryLearner(2, random_state=0).fit(frames)
    other = learner.with_parameters(groups=["a", "b"])
    assert (learner.groups, other.groups) == (None, ["a", "b"])
    np.testing.assert_array_equal(other.components_, learner.components_)
    other.partial_fit(2 * frames[::-1] ** 2)
    assert not np.array_equal(other.components_, learner.components_)

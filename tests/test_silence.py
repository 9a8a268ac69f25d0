"""The silence rule: frames far below the loudest so far of their own recording are left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondes.signal.audio_settings import AudioSettings, is_active, loudest_of, merge
from ondes.signal.stft import Stft

DECIBELS = st.integers(-90, 0).map(lambda decibels: 10 ** (decibels / 10))
ENERGIES = DECIBELS | st.just(0.0) | st.floats(0, 2.0**100, width=32)


@st.composite
def frames(draw):
    pairs = draw(st.lists(st.tuples(ENERGIES, st.integers(0, 5)), max_size=60))
    energies = np.array([energy for energy, _ in pairs], np.float32)
    return energies, np.array([file for _, file in pairs], np.intp)


def loudest_by_loops(energies, files, before=()):
    loudest = dict(before)
    for energy, file in zip(energies, files, strict=True):
        loudest[int(file)] = max(loudest.get(int(file), 0.0), float(energy))
    return loudest


@given(frames(), frames())
def test_the_loudest_is_that_of_plain_loops(first, second):
    assert loudest_of(*first) == loudest_by_loops(*first)
    before = loudest_of(*first)
    expected = loudest_by_loops(*second, before)
    assert merge(before, loudest_of(*second)) == expected
    assert before == loudest_of(*first), "inputs are not written to"


@given(frames(), frames(), st.sampled_from([0.5, 3.0, 20.0, 30.0, 60.0, 300.0]))
def test_active_frames_are_those_of_plain_loops(before, new, top_db):
    energies, files = new
    loudest = loudest_by_loops(*new, loudest_by_loops(*before))
    share = np.float32(10 ** (-top_db / 10))
    expected = [
        energy > share * np.float32(loudest[file])
        for energy, file in zip(energies, files.tolist(), strict=True)
    ]
    assert is_active(energies, files, loudest, top_db).tolist() == expected


@given(frames(), st.sampled_from([20.0, 60.0]))
def test_the_number_of_a_recording_may_stand_for_all_of_its_frames(given, top_db):
    energies, _ = given
    files = np.full(len(energies), 3)
    assert loudest_of(energies, 3) == loudest_of(energies, files)
    loudest = merge({3: 0.5}, loudest_of(energies, 3))
    active = is_active(energies, 3, loudest, top_db)
    assert np.array_equal(active, is_active(energies, files, loudest, top_db))


def test_frames_of_zeros_are_silent_unless_every_frame_is_kept():
    energies, files = np.zeros(4, np.float32), np.array([0, 0, 1, 1])
    loudest = loudest_of(energies, files)
    assert not is_active(energies, files, loudest, 300.0).any()
    assert is_active(energies, files, {}, None).all()


def test_a_louder_frame_makes_earlier_ones_silent_only_from_then_on():
    faint, loud = np.array([1.0], np.float32), np.array([1e7], np.float32)
    loudest = loudest_of(faint, 0)
    assert is_active(faint, 0, loudest, 60.0).all()
    loudest = merge(loudest, loudest_of(loud, 0))
    assert not is_active(faint, 0, loudest, 60.0).any()
    assert is_active(faint, 1, merge(loudest, {1: 1.0}), 60.0).all(), "another recording"


# The setting


@pytest.mark.parametrize("top_db", [0, -60.0, np.inf, np.nan, True, "60"])
def test_top_db_is_a_positive_number_of_decibels_or_none(top_db):
    with pytest.raises(ValueError, match=r"^top_db=.* must be a positive number of decibels"):
        AudioSettings(8000, Stft(), top_db)
    assert AudioSettings(8000, Stft(), None).top_db is None


@pytest.mark.parametrize("sr", [0, -1, 2**31, 8000.0, "8000", None])
def test_the_sampling_rate_is_a_whole_number(sr):
    with pytest.raises(ValueError, match=r"^sr=.* must be a whole number of samples per second"):
        AudioSettings(sr, Stft())


def test_settings_are_plain_numbers_whatever_they_were_given_as():
    audio = AudioSettings(np.int64(8000), Stft(), np.float32(30))
    assert (type(audio.sr), type(audio.top_db)) == (int, float)
    assert audio == AudioSettings(8000, Stft(), 30)
    with pytest.raises(ValueError, match="must be an Stft"):
        AudioSettings(8000, 512)

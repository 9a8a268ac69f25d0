"""Order and position, without any file: every frame once per pass, and no forged position."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondes.signal.audio_settings import AudioSettings
from ondes.signal.schedule import Position, Schedule, Segment
from ondes.signal.stft import Stft
from ondes.signal.survey import Recording

SR = 8000
STFT = Stft(64)
AUDIO = AudioSettings(SR, STFT)
SIZES = {"batch_size": 30, "round_size": 100, "segment_size": 40, "n_open": 3}
INVALID = "The saved position is invalid: start again without it."


def recording(name, n_samples, seekable=True, sr=SR, mark="0"):
    n_frames = None if n_samples is None else STFT.n_frames(n_samples)
    return Recording(name, sr, n_samples, n_frames, seekable, mark=mark)


ALBUM = [
    *(recording(f"{n}.wav", length) for n, length in enumerate([7000, 20, 3000, 12_000, 1, 500])),
    *(recording(f"{n}.ogg", length, seekable=False) for n, length in enumerate([9000, 0, 4096])),
]
UNMEASURED = [recording(f"{n}.flac", None) for n in range(2)]


def schedule_of(recordings=ALBUM, **options):
    return Schedule(recordings, options.pop("audio", AUDIO), **SIZES | options)


def walk(schedule, n_frames_of=lambda file: 0, position=None, max_rounds=2000):
    """All rounds from a position on: where each starts, and its segments."""
    position, rounds = position or schedule.position, []
    while not schedule.is_finished(position):
        assert len(rounds) < max_rounds, "it does not end"
        segments = schedule.segments_at(position)
        rounds.append((position, segments))
        n_read = 0
        for file, first, n_frames in segments:
            known = schedule.recordings[file].n_frames
            n_left = n_frames_of(file) - first if known is None else n_frames
            n_read += max(0, min(n_frames, n_left))
        position = schedule.after(position, n_read, {})
    return rounds, position


# Order


@settings(max_examples=60)
@given(st.data())
def test_every_frame_is_read_once_per_pass(data):
    lengths = st.lists(
        st.tuples(st.integers(0, 6000) | st.none(), st.booleans()), min_size=0, max_size=12
    )
    recordings = [
        recording(str(n), length, seekable)
        for n, (length, seekable) in enumerate(data.draw(lengths))
    ]
    sizes = {name: data.draw(st.integers(7, 300)) for name in SIZES}
    n_passes = data.draw(st.integers(1, 3))
    schedule = Schedule(recordings, AUDIO, **sizes, n_passes=n_passes, random_state=5)
    n_frames = [
        37 * n if each.n_frames is None else each.n_frames for n, each in enumerate(recordings)
    ]
    rounds, end = walk(schedule, lambda file: n_frames[file])
    assert end == Position(n_passes, n_read=n_passes * sum(n_frames))
    for n_pass in range(n_passes):
        segments = [each for at, some in rounds if at.n_pass == n_pass for each in some]
        for file, total in enumerate(n_frames):
            own = sorted((first, n) for number, first, n in segments if number == file)
            is_measured = recordings[file].n_frames is not None
            covered = [frame for first, n in own for frame in range(first, first + n)]
            assert (covered if is_measured else covered[:total]) == list(range(total))


def test_what_is_not_seekable_is_read_in_its_order():
    schedule = schedule_of()
    in_order = [each for _, segments in walk(schedule)[0] for each in segments]
    for file, each in enumerate(ALBUM):
        firsts = [segment.first for segment in in_order if segment.file == file]
        assert each.seekable or firsts == sorted(firsts)
    assert any(
        [s.first for s in in_order if s.file == n]
        != sorted(s.first for s in in_order if s.file == n)
        for n in range(len(ALBUM))
    )


def test_recordings_of_unknown_length_come_last_one_after_the_other():
    schedule = schedule_of([*UNMEASURED, *ALBUM])
    rounds, _ = walk(schedule, lambda file: 250)
    files = [{each.file for each in segments} for _, segments in rounds]
    n_last = next(n for n, each in enumerate(files) if each & {0, 1})
    assert all(each <= {0, 1} and len(each) == 1 for each in files[n_last:])
    for file in (0, 1):
        own = [segments[0] for _, segments in rounds[n_last:] if segments[0].file == file]
        assert own == [Segment(file, first, 100) for first in (0, 100, 200)]


def test_the_order_depends_on_the_random_state_and_the_pass_alone():
    some, same, other = (walk(schedule_of(random_state=n, n_passes=2))[0] for n in (1, 1, 2))
    assert some == same
    assert [segments for _, segments in some] != [segments for _, segments in other]
    first = [segments for at, segments in some if at.n_pass == 0]
    second = [segments for at, segments in some if at.n_pass == 1]
    assert first != second


def test_frames_of_a_round_are_shuffled_by_pass_and_round():
    schedule = schedule_of(random_state=7)
    orders = [
        schedule.permutation(Position(n_pass, n_round), 50).tolist()
        for n_pass in range(2)
        for n_round in range(2)
    ]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 4
    expected = np.random.default_rng([7, 1, 4]).permutation(20)
    assert np.array_equal(schedule.permutation(Position(1, 3), 20), expected)


def test_the_order_of_a_pass_is_made_once():
    schedule = schedule_of()
    assert schedule.order_of_pass(0) is schedule.order_of_pass(0)
    assert schedule.order_of_pass(1) is not schedule.order_of_pass(0)


def test_nothing_to_read_is_an_empty_round_per_pass():
    rounds, _ = walk(schedule_of([recording("empty.wav", 0)], n_passes=3))
    assert [(at.n_pass, segments) for at, segments in rounds] == [(0, []), (1, []), (2, [])]


@pytest.mark.parametrize("name", ["batch_size", "segment_size", "n_open"])
def test_sizes_are_at_least_one(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        schedule_of(**{name: 0})


def test_a_stream_is_read_only_once():
    schedule_of([Recording("stream")])
    with pytest.raises(ValueError, match="A stream can be read only once: n_passes must be 1"):
        schedule_of([Recording("stream")], n_passes=2)


# Progress


def test_seconds_go_from_zero_to_the_total():
    schedule = schedule_of(n_passes=2)
    total = 2 * sum(each.n_samples for each in ALBUM) / SR
    assert schedule.seconds_total == pytest.approx(total)
    done = []
    for position, _ in walk(schedule)[0]:
        schedule.advance(position)
        done.append(schedule.seconds_done)
    assert done == sorted(done)
    assert done[0] == 0
    schedule.advance(Position(2, n_read=10**6))
    assert schedule.seconds_done == pytest.approx(total)
    assert schedule_of([*ALBUM, *UNMEASURED]).seconds_total is None
    schedule.advance(Position(), n_done=250.0)
    assert schedule.seconds_done == 1.0


# Saved positions


POSITIONS = [
    Position(),
    Position(0, 3, 0, 0, 412, 2, {0: 0.5, 8: 12.25}),
    Position(1, 0, n_read=1500, loudest={n: float(n) for n in range(9)}),
]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_saved_position_is_found_again(position):
    schedule, again = schedule_of(n_passes=2), schedule_of(n_passes=2)
    schedule.advance(position)
    again.restore(pickle.loads(pickle.dumps(schedule.state())))
    assert again.position == position
    assert again.seconds_done == schedule.seconds_done


def test_every_position_on_the_way_is_accepted():
    schedule = schedule_of([*ALBUM, *UNMEASURED], n_passes=3)
    rounds, end = walk(schedule, lambda file: 250)
    for position in [*(at for at, _ in rounds), end]:
        schedule.advance(position)
        schedule_of([*ALBUM, *UNMEASURED], n_passes=3).restore(schedule.state())


def test_a_state_is_plain_values_and_arrays():
    state = schedule_of().state()
    assert type(state["settings"]) is str
    assert {type(each) for each in state["position"]} == {int}
    arrays = [*state["recordings"].values(), state["loudest_files"], state["loudest_energies"]]
    assert {str(each.dtype) for each in arrays} == {"uint8", "int64", "float64"}


def test_the_position_in_very_many_recordings_is_small_and_found_again():
    recordings = [recording(f"{n:06}.wav", 16_000, mark="01234567") for n in range(300_000)]
    sizes = {"round_size": 8192, "segment_size": 1024, "n_passes": 2}
    schedule, again = (schedule_of(recordings, **sizes) for _ in range(2))
    loudest = {n: float(n) for n in range(300_000)}
    schedule.advance(Position(0, 7, n_read=60_000, n_given=2, loudest=loudest))
    state = schedule.state()
    assert len(pickle.dumps(state)) < 60 * 300_000
    again.restore(state)
    assert again.position == schedule.position
    recordings[77_777] = recording("077777.wav", 16_001)
    with pytest.raises(ValueError, match=r"^077777\.wav has 16001 samples .* had 16000"):
        schedule_of(recordings, **sizes).restore(state)


@pytest.mark.parametrize(
    "other",
    [
        {"random_state": 1},
        {"batch_size": 31},
        {"round_size": 101},
        {"segment_size": 39},
        {"n_open": 4},
        {"audio": AudioSettings(SR, Stft(64, 16))},
        {"audio": AudioSettings(SR, Stft(64, window="sine"))},
        {"audio": AudioSettings(SR, STFT, None)},
        {"audio": AudioSettings(2 * SR, STFT)},
    ],
    ids=str,
)
def test_a_position_of_other_settings_is_refused(other):
    with pytest.raises(ValueError, match=r"^The saved position belongs to other settings"):
        schedule_of(**other).restore(schedule_of().state())


def test_of_two_recordings_of_one_name_one_is_missed():
    both = [*ALBUM, recording("0.wav", 100)]
    with pytest.raises(ValueError, match=r"^0\.wav is missing"):
        schedule_of().restore(schedule_of(both).state())
    with pytest.raises(ValueError, match=r"^0\.wav is new"):
        schedule_of(both).restore(schedule_of().state())


def test_recordings_in_another_order_are_noticed():
    names = [recording("a.wav", 7000), recording("b.wav", 7000)]
    with pytest.raises(ValueError, match=r"^b\.wav is at another position among the recordings"):
        schedule_of(names[::-1]).restore(schedule_of(names).state())


@pytest.mark.parametrize(
    "name", ["a/b\\c", "two\nlines", "\udcff\x1b[31m", "naïve 音", "", "\ud800"]
)
def test_names_may_have_any_characters(name):
    state = schedule_of([recording(name, 7000)]).state()
    schedule_of([recording(name, 7000)]).restore(state)
    with pytest.raises(ValueError, match=r" is missing since") as caught:
        schedule_of([]).restore(state)
    assert str(caught.value).isprintable()
    with pytest.warns(RuntimeWarning, match="has changed since") as warned:
        schedule_of([recording(name, 7000, mark="1")]).restore(state)
    assert str(warned[0].message).isprintable()


# Forged positions


def forged(**changes):
    schedule = schedule_of([*ALBUM, *UNMEASURED], n_passes=2)
    schedule.advance(Position(0, 3, 0, 0, 412, 2, {0: 0.5, 8: 12.25}))
    state = schedule.state()
    recordings = state["recordings"] | changes.pop("recordings", {})
    return schedule, state | {"recordings": recordings} | changes


N_ROUNDS = schedule_of().order_of_pass(0).n_rounds


@pytest.mark.parametrize(
    "position",
    [
        [0, 3, 0, 0, 412],
        [0, 3, 0, 0, 412, 2, 0],
        [0, 3, 0, 0, 412, 2.0],
        [0, 3, 0, 0, 412, True],
        [0, 3, 0, 0, 412, "2"],
        [0, -1, 0, 0, 412, 2],
        [-1, 3, 0, 0, 412, 2],
        [0, 3, 0, 0, 10**30, 2],
        [0, 3, 1, 0, 412, 2],
        [0, 3, 0, 100, 412, 2],
        [0, 3, 0, 0, 412, 10**6],
        [0, 10**9, 0, 10**11, 412, 0],
        [0, N_ROUNDS, 2, 0, 412, 0],
        [0, N_ROUNDS + 5, 0, 150, 5000, 0],
        [0, N_ROUNDS + 1, 0, 500, 5000, 0],
        [0, N_ROUNDS + 1, 2, 0, 5000, 0],
        [0, N_ROUNDS + 2, 2, 0, 5000, 0],
        [0, N_ROUNDS + 9, 5, 0, 5000, 0],
        [0, N_ROUNDS + 10, 0, 1000, 999, 0],
        None,
        "000000",
        5,
        {},
    ],
    ids=str,
)
def test_a_forged_position_is_refused_in_one_sentence(position):
    schedule, state = forged(position=position)
    before = schedule.position
    with pytest.raises(ValueError, match=f"^{INVALID}$"):
        schedule.restore(state)
    assert schedule.position is before


@pytest.mark.parametrize("n_round", [N_ROUNDS, N_ROUNDS + 1, 10**9])
def test_a_round_after_the_last_is_refused(n_round):
    state = schedule_of().state()
    schedule_of().restore(state | {"position": [0, N_ROUNDS - 1, 0, 0, 412, 0]})
    with pytest.raises(ValueError, match=f"^{INVALID}$"):
        schedule_of().restore(state | {"position": [0, n_round, 0, 0, 412, 0]})


@pytest.mark.parametrize(
    "changes",
    [
        {"loudest_files": np.array([0])},
        {"loudest_files": np.array([0, 0])},
        {"loudest_files": np.array([0, 11])},
        {"loudest_files": np.array([-1, 8])},
        {"loudest_files": np.array([0.0, 8.0])},
        {"loudest_files": [0, 8]},
        {"loudest_energies": np.array([1.0, -1.0])},
        {"loudest_energies": np.array([1.0, np.nan])},
        {"loudest_energies": np.array([[1.0, 2.0]])},
        {"loudest_energies": np.array(["a", "b"])},
        {"recordings": {"names": np.zeros(0, np.uint8)}},
        {"recordings": {"names": np.array([255, 254, 0], np.uint8)}},
        {"recordings": {"names": b"0.wav"}},
        {"recordings": {"marks": np.zeros(3, np.uint8)}},
        {"recordings": {"sr": np.zeros(3, np.int64)}},
        {"recordings": {"n_samples": np.zeros(11)}},
        {"recordings": {"n_samples": None}},
    ],
    ids=str,
)
def test_forged_arrays_are_refused_in_one_sentence(changes):
    schedule, state = forged(**changes)
    with pytest.raises(ValueError, match=f"^{INVALID}$"):
        schedule.restore(state)


@pytest.mark.parametrize(
    "state",
    [{}, {"recordings": {}}, {"recordings": np.zeros(3)}, {"recordings": None}],
    ids=str,
)
def test_what_is_not_a_state_is_refused_in_one_sentence(state):
    schedule, whole = forged()
    with pytest.raises(ValueError, match=f"^{INVALID}$"):
        schedule.restore(state)
    if state:
        with pytest.raises(ValueError, match=f"^{INVALID}$"):
            schedule.restore(whole | state)


COUNTS = st.integers(-2, 60) | st.integers(0, 2**60) | st.sampled_from([100, 200, N_ROUNDS])


@settings(max_examples=300)
@given(st.lists(COUNTS, min_size=6, max_size=6))
def test_whatever_position_is_accepted_can_be_continued_to_the_end(position):
    schedule, state = forged(position=position)
    with contextlib.suppress(ValueError):
        schedule.restore(state)
        assert list(state["position"]) == position
    walk(schedule, lambda file: 250)

"""STFT: the bits do not depend on the blocks, and the inverse gives the samples back."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from ondes.signal.stft import Stft, mean_power

SETTINGS = [
    Stft(),
    Stft(512, 128),
    Stft(500, 123),
    Stft(64, 48, "hamming"),
    Stft(33, 7, "sine"),
    Stft(16, 16, "boxcar"),
    Stft(128, 32, "blackman"),
    Stft(1),
    Stft(2, 1),
    Stft(512, 64, n_synthesis=128),
    Stft(120, 10, n_synthesis=30),
]


def noise(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def in_blocks(stream, values, size, *end):
    parts = [stream.push(values[i : i + size]) for i in range(0, len(values), size)]
    return np.concatenate([*parts, stream.flush(*end)])


@pytest.mark.parametrize("size", [1, 17, 4096])
@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("stft", [Stft(), Stft(100, 33, "sine")], ids=str)
def test_forward_streamed_is_one_go_bit_for_bit(stft, channels, size):
    samples = noise(5000) if channels is None else noise(5000, channels)
    streamed = in_blocks(stft.stream(channels), samples, size)
    assert streamed.dtype == np.complex64
    assert np.array_equal(streamed, stft.forward(samples))


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize(
    "stft", [Stft(64, 16), Stft(100, 33, "sine"), Stft(96, 8, n_synthesis=24)], ids=str
)
def test_inverse_streamed_is_one_go_bit_for_bit(stft, channels, size):
    frames = stft.forward(noise(4000) if channels is None else noise(4000, channels))
    streamed = in_blocks(stft.inverse_stream(channels), frames, size, 4000)
    assert streamed.dtype == np.float32
    assert np.array_equal(streamed, stft.inverse(frames, 4000))


def test_the_bits_of_a_frame_do_not_depend_on_its_place():
    stft = Stft()
    samples = noise(256 * 100)
    frames = stft.forward(samples)
    for first in (1, 2, 5, 40, 67):
        later = stft.forward(samples[first * 256 :])
        assert np.array_equal(later[1:], frames[first + 1 :])


@pytest.mark.parametrize("stft", SETTINGS, ids=str)
def test_inverse_returns_the_input_at_every_length(stft):
    for length in [*range(12), stft.n_fft - 1, stft.n_fft, stft.n_fft + 1, 3000]:
        samples = noise(length, seed=length)
        frames = stft.forward(samples)
        assert len(frames) == stft.n_frames(length)
        back = stft.inverse(frames, length)
        assert back.shape == samples.shape
        np.testing.assert_allclose(back, samples, rtol=0, atol=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_inverse_returns_the_input_for_any_invertible_setting(data):
    n_fft = data.draw(st.integers(1, 150))
    hop = data.draw(st.integers(1, n_fft))
    stft = Stft(n_fft, hop, data.draw(st.sampled_from(["hann", "hamming", "sine", "boxcar"])))
    length = data.draw(st.integers(0, 500))
    samples = noise(length, 2, seed=length)
    try:
        stft.check_invertible()
    except ValueError:
        return
    frames = in_blocks(stft.stream(2), samples, data.draw(st.integers(1, 400)))
    back = in_blocks(stft.inverse_stream(2), frames, data.draw(st.integers(1, 40)), length)
    np.testing.assert_allclose(back, samples, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stft", SETTINGS[:5], ids=str)
def test_frames_are_those_of_scipy(stft):
    samples = noise(2000)
    padded = np.concatenate([np.zeros(stft.n_padding), samples, np.zeros(stft.n_fft)])
    oracle = scipy.signal.ShortTimeFFT(
        stft.window_array.astype(float), stft.hop_length, 1, phase_shift=None
    )
    frames = stft.forward(samples)
    for i, frame in enumerate(frames):
        segment = padded[i * stft.hop_length :][: stft.n_fft]
        expected = np.fft.rfft(segment * oracle.win)
        np.testing.assert_allclose(frame, expected, atol=1e-4)
    np.testing.assert_allclose(stft.dual_window_array, oracle.dual_win, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["hann", "hamming", "boxcar", "cosine"])
@pytest.mark.parametrize("length", [1, 2, 7, 512])
def test_windows_are_those_of_scipy(name, length):
    ours = Stft(length, 1, "sine" if name == "cosine" else name).window_array
    # scipy's periodic cosine is sampled at other points; the sine window is its symmetric one
    expected = scipy.signal.get_window(name, length, fftbins=name != "cosine")
    np.testing.assert_allclose(ours, expected, atol=1e-7)


def test_windows_of_a_low_delay_are_those_of_mauler_and_martin():
    """By their definition: both windows fall alike, and their product is a Hann window."""
    n, m, hop = 96, 24, 6
    stft = Stft(n, hop, n_synthesis=m)
    rising = n - m // 2
    for i in range(n):
        at = (i + 0.0) / rising if i < rising else (n - i) / (m / 2)
        assert stft.window_array[i] == pytest.approx(np.sin(np.pi / 2 * at), abs=1e-6)
    np.testing.assert_array_equal(stft.dual_window_array[: n - m], 0)
    product = (stft.window_array * stft.dual_window_array)[n - m :]
    hann = [0.5 - 0.5 * np.cos(2 * np.pi * i / m) for i in range(m)]
    np.testing.assert_allclose(product, np.array(hann) * 2 * hop / m, atol=1e-7)


@pytest.mark.parametrize(
    "stft", [Stft(96, 8, n_synthesis=24), Stft(1920, 160, n_synthesis=480), Stft(64, 16)], ids=str
)
def test_a_sample_comes_back_after_the_delay_and_no_later(stft):
    """Pushed a sample at a time, and pushed back at once: the latest over a whole hop of places."""
    length = 3 * stft.n_fft
    samples = noise(length)
    latest = 0
    forward, inverse = stft.stream(), stft.inverse_stream()
    n_back = 0
    for pushed in range(1, length + 1):
        back = inverse.push(forward.push(samples[pushed - 1 : pushed]), forward.n_samples)
        np.testing.assert_allclose(back, samples[n_back : n_back + len(back)], atol=1e-6)
        n_back += len(back)
        latest = max(latest, pushed - n_back)
    assert latest == stft.delay - 1


def test_a_low_delay_stays_at_another_rate():
    stft = Stft(1920, 160, n_synthesis=480)
    assert stft.at_rate(44100 / 16000) == Stft(5292, 441, n_synthesis=1323)
    assert stft.at_rate(0.5) == Stft(960, 80, n_synthesis=240)
    for wrong in (100, 160, 1921, 2080):
        with pytest.raises(ValueError, match="n_synthesis"):
            Stft(1920, 160, n_synthesis=wrong)
    with pytest.raises(ValueError, match="hann"):
        Stft(1920, 160, "hamming", n_synthesis=480)


def test_an_stft_that_loses_samples_has_no_inverse():
    for stft in (Stft(512, 512), Stft(512, 500), Stft(8, 8, "hann")):
        stft.forward(noise(100))
        with pytest.raises(ValueError, match="choose a smaller hop_length"):
            stft.inverse_stream()


@pytest.mark.parametrize("bad", [{"n_fft": 0}, {"hop_length": 0}, {"hop_length": 513}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        Stft(**bad)
    with pytest.raises(ValueError, match="No window is called 'hanning window'"):
        Stft(window="hanning window")


def test_flush_and_reset_start_over():
    stft, samples = Stft(64), noise(777)
    stream, inverse = stft.stream(), stft.inverse_stream()
    frames = in_blocks(stream, samples, 100)
    assert np.array_equal(in_blocks(stream, samples, 100), frames)
    stream.push(samples)
    stream.reset()
    assert np.array_equal(in_blocks(stream, samples, 10), frames)
    back = in_blocks(inverse, frames, 5, 777)
    inverse.push(frames[3:])
    inverse.reset()
    assert np.array_equal(in_blocks(inverse, frames, 7, 777), back)


def test_wrong_shapes_and_lengths_are_refused():
    stft = Stft(64)
    with pytest.raises(ValueError, match="Samples of shape"):
        stft.stream(2).push(noise(10))
    with pytest.raises(ValueError, match="Frames of shape"):
        stft.inverse_stream().push(np.zeros((3, 5)))
    for length in (63, 97, 1000):
        with pytest.raises(ValueError, match="hold"):
            stft.inverse(stft.forward(noise(100))[:-1], length)


def test_inputs_are_not_written_to():
    stft, samples = Stft(64), noise(500)
    samples.flags.writeable = False
    frames = stft.forward(samples)
    frames.flags.writeable = False
    stft.inverse(frames, 500)
    assert not stft.window_array.flags.writeable
    assert not stft.dual_window_array.flags.writeable


# Power


@pytest.mark.parametrize("channels", [None, 1, 2, 5])
@pytest.mark.parametrize("stft", SETTINGS, ids=str)
def test_power_is_the_mean_squared_magnitude_of_the_channels(stft, channels):
    for length in (0, 1, 3000):
        samples = noise(length) if channels is None else noise(length, channels)
        frames = stft.forward(samples)
        spectrum = stft.power(samples)
        assert spectrum.dtype == np.float32
        assert spectrum.shape == (stft.n_frames(length), stft.n_bins)
        assert np.array_equal(spectrum, mean_power(frames))
        magnitudes = np.abs(frames.astype(np.complex128)) ** 2
        expected = magnitudes if channels is None else magnitudes.mean(axis=1)
        np.testing.assert_allclose(spectrum, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_power_of_equal_channels_is_that_of_one_bit_for_bit(channels):
    samples = noise(3000)
    expected = Stft().power(samples)
    frames = Stft().forward(samples)
    assert np.array_equal(expected, frames.real**2 + frames.imag**2)
    assert np.array_equal(Stft().power(np.stack([samples] * channels, axis=1)), expected)


def test_power_does_not_depend_on_the_phase_between_channels():
    samples = noise(3000)
    opposite = np.stack([samples, -samples], axis=1)
    assert np.array_equal(Stft().power(opposite), Stft().power(samples))


def test_power_is_written_where_asked_and_nowhere_else():
    frames = Stft().forward(noise(3000, 2))
    frames.flags.writeable = False
    out = np.empty((len(frames), 257), np.float32)
    assert mean_power(frames, out=out) is out
    assert np.array_equal(out, mean_power(frames))

"""The pieces of spatial separation, each against other software or its definition in loops."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest

from ondes.models.variances import activation_step
from ondes.nmf.divergence import BetaDivergence
from ondes.nmf.encoding import Compute, summarise
from ondes.nmf.problem import Problem, Solver
from ondes.report.tracks import PlaceMeter
from ondes.separation.spatial import confidence, room
from ondes.separation.spatial.demixing import (
    channel_products,
    demixed_power,
    inverse,
    iterative_projection,
    scaled_to_images,
    source_order,
    weighted_covariances,
)
from ondes.separation.spatial.pan import (
    PanSolver,
    panned_power,
    panning_covariances,
    panning_histogram,
    wiener_images,
)
from ondes.separation.spatial.places import arrival_angle, arrival_delays, resembles_room
from ondes.separation.spatial.room import (
    RoomSolver,
    demixed,
    expected_power,
    noise_power,
    output_variances,
    soft_images,
    updated_spread,
)
from ondes.separation.spatial.stereo import DIFFUSE, EVEN, StereoFilter, stereo_images
from ondes.signal.stft import Stft

RNG = np.random.default_rng(0)
CHANNELS = pytest.mark.parametrize("n_channels", [2, 3, 5])


def complex_normal(*shape):
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


def frames_of(n_channels, n_bins=4, n_frames=30):
    return complex_normal(n_bins, n_channels, n_frames).astype(np.complex64)


# ---- covariances and demixing ----


@CHANNELS
def test_weighted_covariances_and_demixed_power_are_their_definitions(n_channels):
    frames = frames_of(n_channels)
    weights = RNG.gamma(1.0, size=(2, 4, 30)).astype(np.float32)
    demixing = complex_normal(4, n_channels, n_channels)
    products = channel_products(frames)
    covariances = weighted_covariances(products, weights)
    power = demixed_power(products, demixing)
    for f in range(4):
        for source in range(2):
            each = [
                weights[source, f, t] * np.outer(x, x.conj()) for t, x in enumerate(frames[f].T)
            ]
            np.testing.assert_allclose(
                covariances[source, f], np.mean(each, axis=0), rtol=1e-4, atol=1e-4
            )
        expected = np.abs(demixing[f] @ frames[f]) ** 2
        np.testing.assert_allclose(power[:, f], expected, rtol=2e-4, atol=1e-3)


def test_iterative_projection_is_that_of_pyroomacoustics():
    bss = pytest.importorskip("pyroomacoustics").bss
    for n_channels in (2, 3):
        frames = complex_normal(6, n_channels, 200) * RNG.gamma(0.5, size=(1, 1, 200))
        # Its first step: demixing is the identity, variances are the mean power over all bins.
        _, theirs = bss.auxiva(
            frames.transpose(2, 0, 1), n_iter=1, model="gauss", return_filters=True, proj_back=False
        )
        power = np.square(np.abs(frames)).mean(axis=0)
        weights = np.repeat(1 / power[:, None], 6, axis=1).astype(np.float32)
        covariances = weighted_covariances(channel_products(frames.astype(np.complex64)), weights)
        eye = np.tile(np.eye(n_channels, dtype=complex), (6, 1, 1))
        np.testing.assert_allclose(
            iterative_projection(eye, covariances), theirs, rtol=1e-3, atol=1e-4
        )


@CHANNELS
def test_inverse_is_that_of_numpy_at_any_scale_of_the_rows(n_channels):
    matrices = complex_normal(7, n_channels, n_channels)
    matrices[:, 0] *= 1e8
    np.testing.assert_allclose(
        inverse(matrices) @ matrices, np.tile(np.eye(n_channels), (7, 1, 1)), atol=1e-6
    )


@CHANNELS
def test_singular_matrices_and_covariances_give_finite_rows(n_channels):
    assert np.isfinite(inverse(np.ones((3, n_channels, n_channels), complex))).all()
    frames = np.repeat(frames_of(1), n_channels, axis=1)  # identical channels
    frames[:, :, 3] = 0
    frames[1] = 0  # an empty bin
    covariances = weighted_covariances(
        channel_products(frames), np.ones((n_channels, 4, 30), np.float32)
    )
    demixing = np.tile(np.eye(n_channels, dtype=complex), (4, 1, 1))
    for _ in range(20):
        demixing = scaled_to_images(iterative_projection(demixing, covariances))
    assert np.isfinite(demixing).all()
    assert np.abs(demixing).max() < 1e6


@CHANNELS
def test_outputs_have_the_mean_power_of_their_images(n_channels):
    frames, demixing = frames_of(n_channels), complex_normal(4, n_channels, n_channels)
    mixing = np.linalg.inv(demixing)  # images are projected back
    outputs = demixing @ frames
    images = np.einsum("fcs,fst->sfct", mixing, outputs)
    np.testing.assert_allclose(images.sum(axis=0), frames, atol=1e-4)
    power = demixed_power(channel_products(frames), scaled_to_images(demixing))
    expected = np.square(np.abs(images)).mean(axis=2)
    np.testing.assert_allclose(power, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n_sources", [2, 3, 4])
def test_bins_out_of_order_are_put_in_order(n_sources):
    activity = RNG.gamma(0.3, size=(n_sources, 1, 200))
    power = (activity * RNG.gamma(2.0, size=(n_sources, 40, 200))).astype(np.float32)
    order = np.array(
        [RNG.permutation(n_sources) if f % 4 == 0 else np.arange(n_sources) for f in range(40)]
    )
    shuffled = np.take_along_axis(power, np.argsort(order, axis=1).T[:, :, None], axis=0)
    found = np.take_along_axis(shuffled, source_order(shuffled).T[:, :, None], axis=0)
    np.testing.assert_array_equal(found, power)


# ---- covariances of full rank ----


@pytest.mark.parametrize(("n_sources", "n_channels"), [(2, 2), (3, 3), (3, 2)])
def test_soft_images_are_wiener_estimates_with_the_full_covariances(n_sources, n_channels):
    frames, diagonaliser = frames_of(n_channels), complex_normal(4, n_channels, n_channels)
    spread = RNG.gamma(1.0, size=(4, n_sources, n_channels)).astype(np.float32)
    variances = RNG.gamma(1.0, size=(n_sources, 4, 30)).astype(np.float32)
    images = soft_images(frames, diagonaliser, spread, variances)
    assert len(images) == n_sources - 1
    for f, t in itertools.product(range(4), range(30)):
        back = np.linalg.inv(diagonaliser[f])
        each = [
            variances[n, f, t] * back @ np.diag(spread[f, n]) @ back.conj().T
            for n in range(n_sources)
        ]
        expected = each[0] @ np.linalg.inv(sum(each)) @ frames[f, :, t]
        np.testing.assert_allclose(images[0, f, :, t], expected, rtol=2e-3, atol=2e-3)


def test_updates_are_those_of_fastmnmf_with_a_spread_in_every_bin():
    """The formulas of Sekiguchi et al. (2020), written with einsum as pyroomacoustics does."""
    spread = RNG.gamma(1.0, size=(4, 2, 3))
    variances, power = RNG.gamma(1.0, size=(2, 4, 30)), RNG.gamma(1.0, size=(3, 4, 30))
    total = np.einsum("nft,fnm->mft", variances, spread)
    np.testing.assert_allclose(output_variances(spread, variances), total, rtol=1e-6)
    numerator = np.einsum("fnm,mft->nft", spread, power / total**2)
    denominator = np.einsum("fnm,mft->nft", spread, 1 / total)
    np.testing.assert_allclose(
        expected_power(spread, variances, power),
        variances * np.sqrt(numerator / denominator),
        rtol=1e-6,
    )
    numerator = np.einsum("nft,mft->fnm", variances, power / total**2)
    denominator = np.einsum("nft,mft->fnm", variances, 1 / total)
    numerator += 128 / 30 * numerator.mean(axis=0)  # all bins count like 128 frames in each
    denominator += 128 / 30 * denominator.mean(axis=0)
    np.testing.assert_allclose(
        updated_spread(spread, variances, power),
        spread * np.sqrt(numerator / denominator),
        rtol=1e-6,
    )


# ---- panned stereo ----


def test_panning_histogram_is_its_definition():
    frames = frames_of(2, 5, 40)
    frames[:, 1, ::2] = np.abs(RNG.standard_normal((5, 20))) * frames[:, 0, ::2]  # in phase
    shares = RNG.dirichlet([1, 1], size=(5, 40)).transpose(2, 0, 1)
    expected = np.zeros((2, 90))
    for f, t in itertools.product(range(5), range(40)):
        left, right = frames[f, :, t]
        if np.cos(np.angle(left) - np.angle(right)) < 0.95:
            continue
        mean = np.mean(np.sum(np.abs(frames[f]) ** 2, axis=0))
        weight = np.sqrt((abs(left) ** 2 + abs(right) ** 2) / mean)
        expected[:, int(np.degrees(np.arctan2(abs(right), abs(left))))] += weight * shares[:, f, t]
    np.testing.assert_allclose(panning_histogram(frames, shares), expected, rtol=1e-4)


def test_panned_estimates_are_those_of_the_full_matrices():
    frames, variances = frames_of(2), RNG.gamma(1.0, size=(3, 4, 30)).astype(np.float32)
    covariances = panning_covariances(np.array([20.0, 65.0, np.nan]))
    images, powers = (
        wiener_images(frames, covariances, variances),
        panned_power(frames, covariances, variances),
    )
    np.testing.assert_allclose(images.sum(axis=0), frames, atol=1e-3)
    for f, t in itertools.product(range(4), range(30)):
        total = np.linalg.inv(sum(variances[n, f, t] * covariances[n] for n in range(3)))
        white = total @ frames[f, :, t]
        for n in range(3):
            expected = variances[n, f, t] * covariances[n] @ white
            np.testing.assert_allclose(images[n, f, :, t], expected, rtol=1e-2, atol=1e-2)
            ratio = (white.conj() @ covariances[n] @ white).real / np.trace(total @ covariances[n])
            np.testing.assert_allclose(
                powers[n, f, t], variances[n, f, t] * np.sqrt(ratio), rtol=1e-2
            )


def stereo_in_loops(frames, masks, covariances):
    """Images of all sources and their posterior covariances, bin by bin."""
    whole = [np.array([[a, c], [c, b]]) for a, b, c in covariances]
    images = np.zeros((len(masks), *frames.shape), complex)
    sums = np.zeros((len(masks), 2, 2), complex)
    for t, f in itertools.product(range(len(frames)), range(frames.shape[2])):
        x = frames[t, :, f]
        variances = masks[:, t, f] * np.mean(np.abs(x) ** 2)
        own = [v * r for v, r in zip(variances, whole, strict=True)]
        for j, covariance in enumerate(own):
            gain = covariance @ np.linalg.inv(sum(own))
            images[j, t, :, f] = y = gain @ x
            sums[j] += np.outer(y, y.conj()) + covariance - gain @ covariance
    return images, sums.real


@pytest.mark.parametrize("n_sources", [2, 3])
def test_places_in_stereo_are_found_by_expectation_maximisation(n_sources, monkeypatch):
    monkeypatch.setattr("ondes.separation.spatial.stereo.N_FIRST", 1)
    frames = complex_normal(6, 2, 9).astype(np.complex64)
    masks = RNG.dirichlet(np.ones(n_sources), size=(6, 9)).transpose(2, 0, 1).astype(np.float32)

    def normalised(sums):
        rows = np.stack([sums[:, 0, 0], sums[:, 1, 1], sums[:, 0, 1]], axis=1)
        return (1 - DIFFUSE) * 2 * rows / rows[:, :2].sum(axis=1, keepdims=True) + DIFFUSE * EVEN

    masked = np.einsum("jtf,tcf,tdf->jcd", masks**2, frames, frames.conj()).real
    covariances = normalised(stereo_in_loops(frames, masks, normalised(masked))[1])
    stereo = StereoFilter(half_life=100)
    stereo.learn(frames, masks)
    np.testing.assert_allclose(stereo.covariances, covariances, rtol=1e-4, atol=1e-5)
    images = stereo_in_loops(frames, masks, covariances)[0]
    np.testing.assert_allclose(images.sum(axis=0), frames, atol=1e-5)
    found = stereo_images(stereo.covariances, frames, masks)
    np.testing.assert_allclose(found, images[:-1], atol=1e-3)


def test_bins_above_the_known_ones_share_a_mask_in_stereo():
    frames = complex_normal(6, 2, 9).astype(np.complex64)
    masks = RNG.dirichlet(np.ones(3), size=(6, 5)).transpose(2, 0, 1).astype(np.float32)
    covariances = np.array([[1.5, 0.5, 0.3], [1.0, 1.0, 0.0], [0.4, 1.6, -0.2]])
    whole = np.concatenate([masks, np.repeat(masks[..., -1:], 4, axis=2)], axis=2)
    expected = stereo_in_loops(frames, whole, covariances)[0]
    found = stereo_images(covariances, frames, masks)
    np.testing.assert_allclose(found, expected[:-1], atol=1e-5)


def test_a_spread_that_nothing_holds_does_not_grow_for_ever():
    spread, variances = np.full((1, 1, 1), 1e3, np.float32), np.full((1, 1, 1), 1e-3, np.float32)
    loud, silent = np.full((1, 1, 1), 1e10, np.float32), np.zeros((1, 1, 1), np.float32)
    assert updated_spread(spread, variances, loud) == np.float32(1e3)
    assert updated_spread(spread, variances, silent) > 0


# ---- confidence ----


class Confused:
    """A model that tells the sources of the mixture apart, but not what demixing makes of them."""

    def __init__(self, masks):
        of_outputs = [[0.3, 0.7], [0.7, 0.3]]
        even = [np.reshape(own, (2, 1, 1)) + 0 * masks for own in of_outputs]
        self.answers = iter([masks, *even, *even[::-1]])

    def start(self, power):
        return next(self.answers) * power


@pytest.mark.parametrize(
    ("outputs", "is_demixed"), [("right", True), ("exchanged", False), ("alike", False)]
)
def test_models_that_confuse_sources_do_not_hide_that_they_are_demixed(outputs, is_demixed):
    sources = complex_normal(2, 8, 2, 40).astype(np.complex64)
    loud = RNG.random((8, 1, 40)) < 0.5
    sources *= np.stack([loud, ~loud]) + np.float32(0.05)
    mixture = sources.sum(axis=0)
    masks = np.where(loud[:, 0], 0.6, 0.4)[:, :: confidence.THINNED].astype(np.float32)
    images = {"right": sources[:1], "exchanged": sources[1:], "alike": mixture[None] / 2}
    found = confidence.Confidence(2, half_life=100)
    model = Confused(np.stack([masks, 1 - masks]))
    assert found.is_demixed(mixture, images[outputs], model) == is_demixed


# ---- variances ----


@pytest.mark.parametrize(("beta", "exponent"), [(1.0, 1.0), (0.0, 0.5), (0.5, 1 / 1.5)])
def test_a_step_on_activations_is_that_of_the_encoder(beta, exponent):
    dictionary = RNG.gamma(0.5, size=(6, 12)) + 1e-3
    dictionary /= dictionary.sum(axis=1, keepdims=True)
    frames, start = RNG.gamma(1.0, size=(9, 12)), RNG.gamma(1.0, size=(9, 6))
    problem = Problem(
        dictionary, 1e-12, Solver(1, exponent, ()), divergence=BetaDivergence.of(beta), sparsity=2.0
    )
    encoding, _ = summarise(frames, problem, Compute("reference"), start)
    level = frames.mean(axis=1)
    slope = (2.0 * np.linalg.norm(dictionary, axis=1))[:, None]
    found = activation_step((start * level[:, None]).T, dictionary.T, frames.T, beta, slope)
    np.testing.assert_allclose(found.T / level[:, None], encoding.activations, rtol=1e-5)


# ---- places ----


@pytest.mark.parametrize("shift", [-5, 0, 3])
def test_delays_and_angles_of_shifted_noise(shift):
    noise = RNG.standard_normal(9000)
    image = np.stack([noise[100:8100], noise[100 - shift : 8100 - shift]], axis=1)
    delays = arrival_delays(image, 16000)
    np.testing.assert_allclose(delays, [0, shift / 16000], atol=1e-6)
    expected = -np.degrees(np.arcsin(shift / 16000 * 343 / 0.2))
    np.testing.assert_allclose(arrival_angle(delays[1], 0.2), expected, atol=0.1)


def test_angles_of_sources_in_a_room_are_found():
    pra = pytest.importorskip("pyroomacoustics")
    noise = RNG.standard_normal(16000)
    for angle in (-50, 10, 60):
        room = pra.ShoeBox([6, 5, 3], fs=16000, materials=pra.Material(0.5), max_order=8)
        turn = np.radians(90 - angle)  # the first microphone is on the left, seen from in front
        room.add_source(
            np.array([3 + 1.5 * np.cos(turn), 2.5 + 1.5 * np.sin(turn), 1.5]), signal=noise
        )
        room.add_microphone_array(np.array([[2.9, 2.5, 1.5], [3.1, 2.5, 1.5]]).T)
        room.simulate()
        delay = arrival_delays(room.mic_array.signals.T[:16000], 16000, 0.2 / 343)[1]
        assert abs(arrival_angle(delay, 0.2) - angle) < 6


def test_places_in_stereo():
    noise = RNG.standard_normal(1000)
    for degrees in (0, 20, 45, 90):
        turn = np.radians(degrees)
        meter = PlaceMeter("pan", 16000, 256)
        assert meter.describe() is None
        meter.add(Stft(256).forward(np.outer(noise, [np.cos(turn), np.sin(turn)])))
        assert f"panned to {degrees}°" in meter.describe()


def test_only_channels_with_steady_phase_differences_resemble_a_room():
    noise, other = RNG.standard_normal((2, 50_000))
    panned = np.stack([0.9 * noise + 0.2 * other, 0.3 * noise + 0.8 * other], axis=1)
    decorrelated = np.stack([noise, other], axis=1)
    mics = np.stack([noise[5:-5] + other[7:-3], noise[2:-8] + other[5:-5]], axis=1)
    assert [resembles_room(each, 16000) for each in (panned, decorrelated, mics)] == [
        False,
        False,
        True,
    ]
    assert not resembles_room(np.zeros((100, 2)), 16000)
    assert not resembles_room(np.stack([noise, 0 * noise], axis=1), 16000)


def test_a_header_that_claims_any_rate_makes_little_work():
    pair = np.random.default_rng(0).standard_normal((400, 2))
    tracemalloc.start()
    assert not resembles_room(pair, 2_101_056)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_sound_from_everywhere_has_no_places_even_where_the_models_agree():
    rng = np.random.default_rng(0)

    class HalfEach:
        """The first source is all that is left of the centre."""

        def __init__(self, is_left):
            self.is_left = is_left.astype(np.float32)

        def start(self, power):
            return np.stack([self.is_left, 1 - self.is_left]) * power

        def settled_step(self, powers):
            return powers

    for spread, is_found in ((2, True), (20, False)):
        angles = rng.choice([25.0, 65.0], (50, 40)) + rng.uniform(-spread, spread, (50, 40))
        turn = np.radians(angles)
        frames = np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.complex64)
        solver = PanSolver(2, half_life=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if not is_found else "error")
            solver.images(frames, HalfEach(angles < 45))
        if is_found:
            np.testing.assert_allclose(solver.angles, [25, 65], atol=2)
        else:
            assert np.isnan(solver.angles).all()


def test_noise_power_is_that_of_noise_under_sounds_that_come_and_go():
    rng = np.random.default_rng(1)
    noise = rng.exponential(1.0, (200, 400)) + rng.exponential(1.0, (200, 400))  # two channels
    loud = 1e4 * rng.exponential(1.0, (200, 400)) * (rng.random(400) < 0.8)
    loud[100:] *= 0
    found = noise_power(((noise + loud) / 2).astype(np.float32))
    assert 0.1 < found < 1.0
    silent = np.zeros((200, 300))
    assert noise_power(np.hstack([silent, noise + loud]).astype(np.float32)) == 2 * found
    assert noise_power(silent.astype(np.float32)) == 0
    assert noise_power(np.full((3, 1), np.float32(2))) == 2


def noisy_room(seed=0):
    """Two sources in turn at two microphones, then noise alone, of power one in each bin."""
    rng = np.random.default_rng(seed)
    shape = (20, 2, 300)
    noise = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2)
    mixing = rng.standard_normal((20, 2, 2)) + 1j * rng.standard_normal((20, 2, 2))
    active = np.zeros((2, 1, 300))
    active[0, :, :100], active[1, :, 100:200] = 100, 100
    dry = np.sqrt(active / 2) * (
        rng.standard_normal((2, 20, 300)) + 1j * rng.standard_normal((2, 20, 300))
    )
    frames = np.einsum("fcs,sft->fct", mixing, dry) + noise
    return frames.astype(np.complex64), np.broadcast_to(active, (2, 20, 300)).astype(np.float32)


class Mistaken:
    """Knows when the sources are heard, and takes a third of the noise for the second."""

    def __init__(self, frames, active):
        peak = max(np.abs(frames.real).max(), np.abs(frames.imag).max())
        variances = active.copy()
        variances[1, :, 200:] = 0.3
        self.variances = variances / peak**2

    def start(self, powers):
        return self.variances

    restart = step = settle = settled_step = start


def test_noise_alone_is_divided_evenly_though_a_model_takes_it_for_its_source():
    frames, active = noisy_room()
    images = RoomSolver(2, half_life=1000).images(frames, Mistaken(frames, active))
    alone = frames[:, :, 200:]
    share = np.vdot(alone, images[0, :, :, 200:]).real / np.vdot(alone, alone).real
    assert 0.4 < share < 0.6


def test_noise_is_part_of_the_floor_while_demixing(monkeypatch):
    frames, active = noisy_room()
    model, solver = Mistaken(frames, active), RoomSolver(2, half_life=1000)
    monkeypatch.setattr(room, "N_SOFT", 0)
    solver.images(frames, model)
    peak = max(np.abs(frames.real).max(), np.abs(frames.imag).max())
    power = np.square(np.abs(frames / peak)).mean(axis=1)
    floor = np.zeros((20, 1), np.float32)
    for f in range(20):
        floor[f] = 0.01 * power[f].mean() + np.quantile(np.quantile(power, 0.05, axis=1), 0.2)
    expected = demixed(channel_products(frames / peak), power, floor, model)
    np.testing.assert_allclose(solver.demixing, expected, rtol=1e-4, atol=1e-5)

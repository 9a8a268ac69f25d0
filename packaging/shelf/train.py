"""Train a separator that comes with ondes, on one GPU; what was run is in run.sh.

PyTorch and Triton are all it needs: libsndfile.so and the folder `pools` lie beside it.
"""

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

HERE = Path(__file__).parent
SR = 16000
NAMES = ("speech", "music", "noise")
LIVE = 480  # samples that a frame of live sound gives
LEVEL_HALF_LIFE = 100  # frames of 30 ms

# ---- recurrence ----


@triton.jit
def sweep_forward(p, h_out, y_out, n, inner, outer_step, inner_step, step, H: tl.constexpr):
    o, backward = tl.program_id(0), tl.program_id(1)
    row = (o // inner).to(tl.int64) * outer_step + (o % inner) * inner_step
    lane = backward * H + tl.arange(0, H)
    h = tl.zeros((H,), tl.float32)
    for i in range(n):
        j = i if backward == 0 else n - 1 - i
        r = row + j * step
        z = tl.sigmoid(tl.load(p + r * 6 * H + lane).to(tl.float32))
        c = tl.load(p + r * 6 * H + 2 * H + lane).to(tl.float32)
        g = tl.load(p + r * 6 * H + 4 * H + lane).to(tl.float32)
        h = z * h + (1 - z) * c
        tl.store(h_out + r * 2 * H + lane, h.to(h_out.dtype.element_ty))
        tl.store(y_out + r * 2 * H + lane, (h * tl.maximum(g, 0.0)).to(y_out.dtype.element_ty))


@triton.jit
def sweep_backward(p, h_in, dy, dp, n, inner, outer_step, inner_step, step, H: tl.constexpr):
    o, backward = tl.program_id(0), tl.program_id(1)
    row = (o // inner).to(tl.int64) * outer_step + (o % inner) * inner_step
    lane = backward * H + tl.arange(0, H)
    carry = tl.zeros((H,), tl.float32)
    for i in range(n):
        j = n - 1 - i if backward == 0 else i
        before = j - 1 if backward == 0 else j + 1
        inside = tl.minimum(tl.maximum(before, 0), n - 1)
        r = row + j * step
        z = tl.sigmoid(tl.load(p + r * 6 * H + lane).to(tl.float32))
        c = tl.load(p + r * 6 * H + 2 * H + lane).to(tl.float32)
        g = tl.load(p + r * 6 * H + 4 * H + lane).to(tl.float32)
        d = tl.load(dy + r * 2 * H + lane).to(tl.float32)
        h = tl.load(h_in + r * 2 * H + lane).to(tl.float32)
        last = tl.load(h_in + (row + inside * step) * 2 * H + lane).to(tl.float32)
        last = tl.where(inside == before, last, 0.0)
        dh = carry + d * tl.maximum(g, 0.0)
        kind = dp.dtype.element_ty
        tl.store(dp + r * 6 * H + lane, (dh * (last - c) * z * (1 - z)).to(kind))
        tl.store(dp + r * 6 * H + 2 * H + lane, (dh * (1 - z)).to(kind))
        tl.store(dp + r * 6 * H + 4 * H + lane, tl.where(g > 0, d * h, 0.0).to(kind))
        carry = dh * z


class Sweep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, axis):
        p = p.contiguous()
        B, T, K, H = *p.shape[:3], p.shape[3] // 6
        shape = (B * K, T, K, T * K, 1, K) if axis == 1 else (B * T, K, 1, K, 0, 1)
        programs, n, inner, outer_step, inner_step, step = shape
        h = torch.empty((B, T, K, 2 * H), dtype=p.dtype, device=p.device)
        y = torch.empty_like(h)
        sweep_forward[(programs, 2)](
            p, h, y, n, inner, outer_step, inner_step, step, H=H, num_warps=2
        )
        ctx.save_for_backward(p, h)
        ctx.shape = shape
        ctx.H = H
        return y

    @staticmethod
    def backward(ctx, dy):
        p, h = ctx.saved_tensors
        programs, n, inner, outer_step, inner_step, step = ctx.shape
        dp = torch.empty_like(p)
        sweep_backward[(programs, 2)](
            p, h, dy.contiguous(), dp, n, inner, outer_step, inner_step, step, H=ctx.H, num_warps=2
        )
        return dp, None


def sweep_plain(p, axis):
    """The same, slowly: for checks and CPUs."""
    H = p.shape[-1] // 6
    z, c, g = torch.sigmoid(p[..., : 2 * H]), p[..., 2 * H : 4 * H], torch.relu(p[..., 4 * H :])
    outs = []
    for half, flip in ((slice(0, H), False), (slice(H, 2 * H), True)):
        zz, cc = z[..., half].unbind(axis), c[..., half].unbind(axis)
        order = range(len(zz))
        order = reversed(order) if flip else order
        h, got = 0, [None] * len(zz)
        for i in order:
            h = zz[i] * h + (1 - zz[i]) * cc[i]
            got[i] = h
        outs.append(torch.stack(got, axis))
    return torch.cat(outs, -1) * g


# ---- network ----


def sweep_past(sweep, p):
    """Along time, for live sound: half of the numbers remember, the others hear one frame."""
    H = p.shape[-1] // 6
    z, c, g = torch.sigmoid(p[..., H : 2 * H]), p[..., 3 * H : 4 * H], torch.relu(p[..., 5 * H :])
    return torch.cat([sweep(p, 1)[..., :H], (1 - z) * c * g], -1)


def mean_of_past(values):
    """Of (B, T), a running mean with `LEVEL_HALF_LIFE`."""
    n_frames = values.shape[1]
    at = torch.arange(n_frames, device=values.device)
    weights = torch.tril(0.5 ** ((at[:, None] - at) / LEVEL_HALF_LIFE))
    return (values @ (weights / weights.sum(1, keepdim=True)).T)[..., None]


class Net(torch.nn.Module):
    def __init__(self, n_fft, hop, groups, C, H, L, n_sources, is_complex, is_live=False):
        super().__init__()
        self.is_live = is_live
        self.settings = {
            "n_fft": n_fft,
            "hop": hop,
            "groups": groups,
            "C": C,
            "H": H,
            "L": L,
            "n_sources": n_sources,
            "is_complex": is_complex,
        }
        self.n_fft, self.hop, self.groups, self.is_complex, self.n_sources = (
            n_fft,
            hop,
            groups,
            is_complex,
            n_sources,
        )
        self.n_bins = sum(n * w for n, w in groups)
        K = sum(n for n, w in groups)
        P, f = torch.nn.Parameter, 3 if is_complex else 1
        out = n_sources * (2 if is_complex else 1)
        self.embed = torch.nn.ParameterList(
            [P(torch.randn(n, w * f, C) / math.sqrt(w * f)) for n, w in groups]
        )
        self.place = P(torch.randn(K, C) * 0.3)
        self.into = torch.nn.ParameterList()
        self.bias = torch.nn.ParameterList()
        self.back = torch.nn.ParameterList()
        for layer in range(L):
            self.into.append(P(torch.randn(C, 6 * H) / math.sqrt(C)))
            tau = torch.exp(
                torch.linspace(math.log(1.3), math.log(80.0 if layer % 2 == 0 else 12.0), H)
            ).repeat(2)
            bias = torch.zeros(6 * H)
            bias[: 2 * H] = torch.log(tau - 1)
            bias[4 * H :] = 0.3
            self.bias.append(P(bias))
            self.back.append(P(torch.randn(2 * H, C) / math.sqrt(2 * H) * 0.5))
        self.hidden = torch.nn.ParameterList(
            [P(torch.randn(n, C, 2 * C) / math.sqrt(C)) for n, w in groups]
        )
        self.hidden_bias = torch.nn.ParameterList([P(torch.zeros(n, 1, 2 * C)) for n, w in groups])
        self.mask = torch.nn.ParameterList(
            [P(torch.randn(n, 2 * C, out * w) / math.sqrt(2 * C) * 0.3) for n, w in groups]
        )
        self.mask_bias = torch.nn.ParameterList([P(torch.zeros(n, 1, out * w)) for n, w in groups])

    def forward(self, X):
        """Masks (B, S, T, n_bins) of spectra (B, T, F)."""
        B, T, _ = X.shape
        X = X[..., : self.n_bins]
        power = X.real.square() + X.imag.square()
        level = power.mean(dim=(1, 2), keepdim=True)
        if self.is_live:
            level = mean_of_past(power.mean(dim=2))
        power = power / (level + 1e-20)
        feature = (power + 1e-10) ** 0.125
        if self.is_complex:
            # X is levelled by its magnitude
            unit = feature / torch.sqrt(X.real.square() + X.imag.square() + 1e-20)
            feature = torch.stack([feature, X.real * unit, X.imag * unit], -1)
        else:
            feature = feature[..., None]
        xs, at = [], 0
        for (n, w), e in zip(self.groups, self.embed, strict=False):
            part = feature[:, :, at : at + n * w].reshape(B * T, n, -1).transpose(0, 1)
            xs.append(torch.bmm(part.to(e.dtype), e).transpose(0, 1))
            at += n * w
        x = torch.cat(xs, 1).reshape(B, T, -1, self.place.shape[1]) + self.place
        x = x.float()
        sweep = Sweep.apply if x.is_cuda or os.environ.get("TRITON_INTERPRET") else sweep_plain
        for layer, (into, bias, back) in enumerate(
            zip(self.into, self.bias, self.back, strict=False)
        ):
            p = torch.nn.functional.linear(normal(x), into.T, bias)
            is_past = self.is_live and layer % 2 == 0
            swept = sweep_past(sweep, p) if is_past else sweep(p, 1 + layer % 2)
            x = x + torch.nn.functional.linear(swept, back.T).float()
        x = normal(x).reshape(B * T, -1, x.shape[-1])
        masks, at = [], 0
        for (n, w), a, b, c, d in zip(
            self.groups, self.hidden, self.hidden_bias, self.mask, self.mask_bias, strict=False
        ):
            part = x[:, at : at + n].transpose(0, 1)
            at += n
            out = torch.bmm(torch.relu(torch.bmm(part, a) + b), c) + d
            masks.append(
                out.reshape(n, B, T, -1, w).permute(1, 3, 2, 0, 4).reshape(B, -1, T, n * w)
            )
        masks = torch.cat(masks, -1).float()
        if not self.is_complex:
            return torch.softmax(masks, 1)
        masks = torch.complex(masks[:, : self.n_sources], masks[:, self.n_sources :])
        return masks + (1 - masks.sum(1, keepdim=True)) / self.n_sources


def normal(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


# ---- sound ----


def window_of(n, device):
    return torch.hann_window(n, periodic=True, device=device)


def live_windows(n_fft, device):
    """Those of `ondes.Stft(n_fft, n_synthesis=LIVE)`, the second without its scale."""
    rise, fall = n_fft - LIVE // 2, LIVE // 2
    parts = [window_of(2 * rise, device)[:rise], window_of(LIVE, device)[fall:]]
    analysis = torch.cat(parts).sqrt()
    synthesis = window_of(LIVE, device) / analysis[-LIVE:].clamp_min(1e-6)
    return analysis, synthesis


def stft(x, n_fft, hop, is_live=False):
    window = live_windows(n_fft, x.device)[0] if is_live else window_of(n_fft, x.device)
    return torch.fft.rfft(x.unfold(-1, n_fft, hop) * window)


def live_parts(X, n_fft):
    """The samples that each frame of live sound gives, one frame after the other."""
    parts = torch.fft.irfft(X, n=n_fft)[..., -LIVE:] * live_windows(n_fft, X.device)[1]
    return parts.flatten(-2)


def istft(X, n_fft, hop):
    w = window_of(n_fft, X.device)
    q = n_fft // hop
    dual = w / w.square().reshape(q, hop).sum(0).repeat(q)
    parts = (torch.fft.irfft(X, n=n_fft) * dual).unflatten(-1, (q, hop))
    T = X.shape[-2]
    # samples of hops q-1 .. T-1, which all frames cover
    return sum(parts[..., q - 1 - k : T - k, k, :] for k in range(q)).flatten(-2)


class Sounds:
    """Random mixtures: what people meet."""

    def __init__(self, pools, rooms, device, B, n):
        self.pools, self.rooms, self.device, self.B, self.n = pools, rooms, device, B, n

    def uniform(self, a, b, *shape):
        return a + (b - a) * torch.rand(*shape, device=self.device)

    def excerpt(self, pool, B, semitones):
        n = self.n
        rate = 2.0 ** (torch.randint(-semitones, semitones + 1, (B, 1), device=self.device) / 12)
        span = int(n * 2 ** (semitones / 12)) + 8
        start = torch.rand((B, 1), device=self.device, dtype=torch.float64) * (len(pool) - span)
        place = 1 + torch.arange(n, device=self.device) * rate
        whole = place.long()
        part, at = place - whole, (whole + start.long()).clamp(1, len(pool) - 3)
        a, b, c, d = (pool[at + k].float() / 32768 for k in (-1, 0, 1, 2))
        x = b + 0.5 * part * (
            c - a + part * (2 * a - 5 * b + 4 * c - d + part * (3 * (b - c) + d - a))
        )
        return self.level(x)

    def level(self, x):
        return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3)

    def chance(self, p, B):
        return (torch.rand((B, 1), device=self.device) < p).float()

    def pauses(self, x, p):
        B, n = x.shape
        knots = 24
        on = (
            torch.rand((B, 1, knots), device=self.device) < self.uniform(0.3, 0.95, B, 1, 1)
        ).float()
        gate = torch.nn.functional.interpolate(on, size=n, mode="linear", align_corners=True)[:, 0]
        gate = ((gate - 0.5) * 4 + 0.5).clamp(0, 1)
        return torch.where(self.chance(p, B) > 0, x * gate, x)

    def coloured(self, B):
        n = self.n
        S = torch.fft.rfft(torch.randn((B, n), device=self.device))
        f = torch.arange(S.shape[-1], device=self.device) / S.shape[-1]
        tilt = self.uniform(-2.2, 0.6, B, 1) / 2
        gain = (f + 0.004) ** tilt
        for waves in (1, 2, 3, 5):
            gain = gain * torch.exp(
                torch.randn((B, 1), device=self.device)
                * 0.6
                * torch.cos(
                    math.pi * waves * torch.log1p(40 * f) / math.log(41)
                    + self.uniform(0, 6.28, B, 1)
                )
            )
        x = self.level(torch.fft.irfft(S * gain, n=n))
        slow = torch.nn.functional.interpolate(
            torch.randn((B, 1, 40), device=self.device), size=n, mode="linear", align_corners=True
        )[:, 0]
        x = x * torch.exp(slow * self.uniform(0, 0.7, B, 1))
        # drops: sparse impulses through a short resonance
        drops = torch.randn((B, n), device=self.device) * (
            torch.rand((B, n), device=self.device) < torch.exp(self.uniform(-10, -5, B, 1))
        )
        tail = torch.exp(
            -torch.arange(1600, device=self.device) / torch.exp(self.uniform(2, 6, B, 1))
        ) * torch.cos(torch.arange(1600, device=self.device) * self.uniform(0.02, 2.5, B, 1))
        drops = torch.fft.irfft(torch.fft.rfft(drops, n=2 * n) * torch.fft.rfft(tail, n=2 * n))[
            :, :n
        ]
        return x + self.level(drops) * self.chance(0.3, B) * self.uniform(0.2, 3, B, 1)

    def noise(self):
        B = self.B
        pool = self.excerpt(self.pools["noise"], B, 12) + self.chance(0.5, B) * self.excerpt(
            self.pools["noise"], B, 12
        ) * self.uniform(0.1, 1, B, 1)
        pool = torch.where(self.chance(0.3, B) > 0, pool.flip(-1), pool)
        babble = sum(
            self.excerpt(self.pools["speech"], B, 4) * self.uniform(0.4, 1, B, 1) for _ in range(6)
        )
        kind = torch.rand((B, 1), device=self.device)
        x = torch.where(
            kind < 0.45, pool, torch.where(kind < 0.78, self.coloured(B), self.level(babble))
        )
        return self.level(x) + self.chance(0.35, B) * self.coloured(B) * torch.exp(
            self.uniform(-3, 0.5, B, 1)
        )

    def rooms_of(self, B):
        n = SR
        t = torch.arange(n, device=self.device) / SR
        t60 = torch.exp(self.uniform(math.log(0.08), math.log(1.2), B, 1))
        tail = torch.randn((B, n), device=self.device) * torch.exp(-6.9 * t / t60)
        tail[:, :32] = 0
        tail = (
            tail
            / tail.square().sum(-1, keepdim=True).sqrt()
            * 10 ** (self.uniform(-18, 3, B, 1) / 20)
        )
        real = self.rooms[torch.randint(0, len(self.rooms), (B,), device=self.device)]
        room = torch.where(self.chance(0.15, B) > 0, real, tail)
        room[:, 0] += 1
        return room

    def coloured_by_place(self, x, p_room, eq_db, p_band):
        """A room, an equaliser and a bandwidth for each row."""
        B, n = x.shape
        size = n + SR
        X = torch.fft.rfft(x, n=size)
        f = torch.arange(X.shape[-1], device=self.device) / X.shape[-1]
        room = torch.fft.rfft(self.rooms_of(B), n=size)
        X = torch.where(self.chance(p_room, B) > 0, X * room, X)
        place = torch.log1p(40 * f) / math.log(41)
        gain = torch.zeros((B, len(f)), device=self.device)
        for waves in (1, 2, 3):
            gain = gain + eq_db / waves * torch.randn((B, 1), device=self.device) * torch.cos(
                math.pi * waves * place + self.uniform(0, 6.28, B, 1)
            )
        return torch.fft.irfft(X * 10 ** (gain / 20) * self.band(B, f, p_band), n=size)[:, :n]

    def band(self, B, f, p):
        top = torch.where(
            self.chance(p, B) > 0,
            self.uniform(0.4, 0.9, B, 1),
            torch.full((B, 1), 2.0, device=self.device),
        )
        low = torch.where(
            self.chance(p, B) > 0,
            self.uniform(0.005, 0.04, B, 1),
            torch.full((B, 1), -1.0, device=self.device),
        )
        return torch.sigmoid((top - f) * 120) * torch.sigmoid((f - low) * 800)

    def clipped(self, x, p):
        limit = self.uniform(0.8, 2.5, len(x), 1)
        return torch.where(
            self.chance(p, len(x)) > 0, torch.maximum(torch.minimum(x, limit), -limit), x
        )

    def draw(self, parts):
        """(B, 3, n): the sources of mixtures."""
        B = self.B
        speech = self.excerpt(self.pools["speech"], B, 4)
        speech = speech + self.chance(0.12, B) * self.excerpt(
            self.pools["speech"], B, 4
        ) * self.uniform(0.2, 1, B, 1)
        speech = self.clipped(self.pauses(speech, 0.5), 0.06)
        music = self.excerpt(self.pools["music"], B, 5)
        music = self.pauses(self.clipped(music, 0.04), 0.1)
        noise = self.pauses(self.noise(), 0.15)
        speech = self.level(self.coloured_by_place(speech, 0.4, 3.0, 0.15))
        music = self.level(self.coloured_by_place(music, 0.1, 3.0, 0.08))
        noise = self.level(self.coloured_by_place(noise, 0.3, 4.0, 0.05))
        self.last = speech, music, noise
        return self.mix(parts, speech, music, noise)

    def again(self, parts):
        """Other mixtures of the last sources."""
        return self.mix(parts, *(x[torch.randperm(self.B, device=self.device)] for x in self.last))

    def mix(self, parts, speech, music, noise):
        B = self.B
        kind = torch.rand((B, 1), device=self.device)
        edges = np.cumsum(parts)  # S+M, S+N, S+M+N, M+N, S, M, N

        def has(which):
            return sum(
                (kind >= (edges[i - 1] if i else 0)) & (kind < edges[i]) for i in which
            ).float()

        def snr(mean, spread):
            return (mean + spread * torch.randn((B, 1), device=self.device)).clamp(-15, 25)

        music = music * has((0, 2, 3, 5)) * 10 ** (-snr(2, 7) / 20)
        noise = noise * has((1, 2, 3, 6)) * 10 ** (-snr(6, 8) / 20)
        speech = speech * has((0, 1, 2, 4))
        x = torch.stack([speech, music, noise], 1)
        size = x.shape[-1]
        common = self.band(B, torch.arange(size // 2 + 1, device=self.device) / (size // 2), 0.12)
        return torch.fft.irfft(torch.fft.rfft(x) * common[:, None], n=size)


# ---- training ----


def loss_of(masks, X, S, net, mixture_energy, tau):
    n = net.n_bins
    rest = masks[..., -1:].expand(*masks.shape[:-1], X.shape[-1] - n)
    full = torch.cat([masks, rest], -1)
    if net.is_live:
        estimate = live_parts(full * X[:, None], net.n_fft)
        truth = live_parts(stft(S, net.n_fft, net.hop, True), net.n_fft)
        return (estimate - truth).square().sum(-1), truth, estimate
    estimate = istft(full * X[:, None], net.n_fft, net.hop)
    q = net.n_fft // net.hop
    truth = S[..., (q - 1) * net.hop :][..., : estimate.shape[-1]]
    error = (estimate - truth).square().sum(-1)
    return error, truth, estimate


def objective(error, truth, tau):
    energy = truth.sum(1).square().sum(-1, keepdim=True)
    return 10 * torch.log10((error + tau * energy) / energy)


def si_sdr(truth, estimate):
    along = (
        (truth * estimate).sum(-1, keepdim=True)
        / truth.square().sum(-1, keepdim=True).clamp_min(1e-9)
        * truth
    )
    return 10 * torch.log10(
        along.square().sum(-1).clamp_min(1e-9) / (estimate - along).square().sum(-1).clamp_min(1e-9)
    )


def merged(S, names):
    """The sources that a separator has: denoising hears music and noise as one."""
    return S if len(names) == 3 else torch.stack([S[:, 0], S[:, 1] + S[:, 2]], 1)


def checks(pools, device, n):
    g = np.random.default_rng(1)

    def cut(x, count):
        at = g.integers(0, len(x) - n, count)
        s = np.stack([x[a : a + n] for a in at]).astype(np.float32) / 32768
        return torch.tensor(s / (np.sqrt((s**2).mean(-1, keepdims=True)) + 1e-3), device=device)

    speech, music, noise = (cut(pools[k + "_held"], 48) for k in NAMES)
    zero = torch.zeros_like(speech)
    return {
        "music 0": torch.stack([speech, music, zero], 1),
        "noise 5": torch.stack([speech, zero, noise * 10 ** (-5 / 20)], 1),
        "noise 15": torch.stack([speech, zero, noise * 10 ** (-15 / 20)], 1),
        "both": torch.stack([speech, music * 0.7, noise * 0.5], 1),
    }


def check(net, sets, names):
    out = {}
    with torch.no_grad():
        for key, S in sets.items():
            got = []
            for s in S.split(16):
                s = merged(s, names)
                X = stft(s.sum(1), net.n_fft, net.hop, net.is_live)
                _, truth, estimate = loss_of(net(X), X, s, net, None, 0)
                before = si_sdr(truth, truth.sum(1, keepdim=True).expand_as(truth))
                got.append(si_sdr(truth, estimate) - (before if "noise" in key else 0))
            v = torch.cat(got).median(0).values.tolist()
            worst = torch.cat(got).min(0).values.tolist()
            cols = {"music 0": (0, 1), "both": (0, 1, 2)}.get(key, (0,))
            out[key] = " ".join(f"{v[c]:.2f}({worst[c]:.1f})" for c in cols if c < len(v))
    return out


def without_hiss(x, n=8000):
    """Some voices come with recordings of their silence: hiss is no example of speech."""
    S = (
        np.abs(np.fft.rfft(x[: len(x) // n * n].reshape(-1, n).astype(np.float32) / 32768)) ** 2
        + 1e-9
    )
    S = S[:, 100:3600].reshape(len(S), -1, 50).mean(-1)
    flat = np.exp(np.log(S).mean(1)) / S.mean(1)
    print(f"speech: {np.mean(flat > 0.5):.2%} is hiss", flush=True)
    return x[: len(flat) * n].reshape(-1, n)[flat <= 0.5].ravel()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=60)
    a.add_argument("--out", default="net")
    a.add_argument("--names", default="speech,music,noise")
    a.add_argument("--complex", action="store_true")
    a.add_argument("--live", action="store_true", help="hear the past alone, late by 30 ms")
    a.add_argument("--n-fft", type=int, default=1920)
    a.add_argument("--hop", type=int, default=480)
    a.add_argument("--groups", default="12x8,12x16,12x48")
    a.add_argument("--C", type=int, default=64)
    a.add_argument("--H", type=int, default=64)
    a.add_argument("--L", type=int, default=8)
    a.add_argument("--frames", type=int, default=200)
    a.add_argument("--batch", type=int, default=32)
    a.add_argument("--rate", type=float, default=2e-3)
    a.add_argument("--tau", type=float, default=1e-3)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--start")
    a.add_argument("--limit", type=int)
    a.add_argument("--parts", default=".32,.28,.25,.05,.05,.03,.02")
    a.add_argument("--warm", type=int, default=200)
    a.add_argument(
        "--steady", type=float, default=0.5, help="share of the time before the rate falls"
    )
    g = a.parse_args()
    begin = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(g.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    from concurrent.futures import ThreadPoolExecutor

    import audio

    wanted = [f"{k}{e}" for k in NAMES for e in ("", "_held")]
    cache = HERE / "pools.npz"
    if cache.exists():
        arrays = dict(np.load(cache))
    else:

        def load(k):
            return np.clip(audio.read(f"{HERE}/pools/{k}.opus") * 32767, -32767, 32767).astype(
                np.int16
            )

        with ThreadPoolExecutor(6) as pool:
            arrays = dict(zip(wanted, pool.map(load, wanted), strict=False))
        arrays["speech"] = without_hiss(arrays["speech"])
        np.savez(cache, **arrays)
    pools = {k: torch.tensor(arrays[k], device=device) for k in NAMES}
    rooms = torch.tensor(np.load(f"{HERE}/pools/rooms.npy").astype(np.float32), device=device)
    names = g.names.split(",")
    groups = [tuple(map(int, x.split("x"))) for x in g.groups.split(",")]
    net = Net(g.n_fft, g.hop, groups, g.C, g.H, g.L, len(names), g.complex, g.live).to(device)
    if g.start:
        state = torch.load(g.start, map_location=device)
        own = net.state_dict()
        for k, v in state["state"].items():
            if own[k].shape == v.shape:
                own[k].copy_(v)
            else:  # three masks become two: the mean of what is merged
                n, r, _c = v.shape
                v = v.reshape(n, r, 3, -1)
                own[k].copy_(
                    torch.stack([v[:, :, 0], 0.5 * (v[:, :, 1] + v[:, :, 2])], 2).reshape(n, r, -1)
                )
    average = {k: v.clone() for k, v in net.state_dict().items()}
    n = (g.frames - 1) * g.hop + g.n_fft
    sounds = Sounds(pools, rooms, device, g.batch, n)
    sets = checks(arrays, device, n)
    parameters = list(net.parameters())
    adam = torch.optim.AdamW(
        parameters,
        lr=g.rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        **({"fused": True} if device == "cuda" else {}),
    )
    parts = tuple(map(float, g.parts.split(",")))
    print(
        f"{g.out}: {sum(p.numel() for p in parameters) / 1e6:.2f} M weights; "
        f"ready after {time.time() - begin:.0f} s",
        flush=True,
    )
    start, step, _reported, typical = time.time(), 0, 0.0, None
    shown = 0
    while True:
        share = (time.time() - start) / g.seconds if not g.limit else step / g.limit
        if share >= 1:
            break
        rate = g.rate * min(1, (step + 1) / g.warm)
        if share > g.steady:
            rate *= (1 - share) / (1 - g.steady)
        adam.param_groups[0]["lr"] = rate
        with torch.no_grad():
            S = merged(sounds.again(parts) if step % 2 else sounds.draw(parts), names)
            mixture = S.sum(1)
            floor = (
                10 ** sounds.uniform(-4, -2.4, g.batch, 1)
                * mixture.square().mean(-1, keepdim=True).sqrt()
            )
            X = stft(mixture + floor * torch.randn_like(mixture), g.n_fft, g.hop, g.live)
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            masks = net(X)
        error, truth, _ = loss_of(masks, X, S, net, None, g.tau)
        loss = objective(error, truth, g.tau).mean()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        typical = (
            norm.detach().clone()
            if typical is None
            else torch.where(
                torch.isfinite(norm),
                0.98 * typical + 0.02 * torch.minimum(norm, 3 * typical),
                typical,
            )
        )
        scale = torch.where(
            torch.isfinite(norm), (2 * typical / (norm + 1e-9)).clamp(max=1), torch.zeros_like(norm)
        )
        for p in parameters:
            p.grad = torch.nan_to_num(p.grad, 0, 0, 0) * scale
        adam.step()
        decay = min(0.999, (step + 1) / (step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(average.values()), [v.detach() for v in net.state_dict().values()], 1 - decay
            )
        step += 1
        if step % 25 == 0 or step == 1:
            seen = loss.item()
        if step in (1, 5, 20, 100):
            print(
                f"step {step}: {time.time() - start:.2f} s, loss {loss.item():.2f}, "
                f"norm {norm.item():.3g}",
                flush=True,
            )
        if share > shown + 1 / 6:
            shown = share
            print(
                f"{g.out} {share:.2f} {step} updates {(time.time() - start):.0f} s "
                f"loss {seen:.2f} {evaluated(net, average, sets, names)}",
                flush=True,
            )
            save(g.out, net, average, names)
    save(g.out, net, average, names)
    print(
        f"{g.out} END {step} updates {(time.time() - start):.0f} s "
        f"{evaluated(net, average, sets, names)}",
        flush=True,
    )


def evaluated(net, average, sets, names):
    own = {k: v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(average)
    result = check(net, sets, names)
    net.load_state_dict(own)
    return result


def save(path, net, average, names):
    torch.save(
        {
            "settings": net.settings,
            "names": names,
            "state": dict(average),
        },
        path + ".pt",
    )


if __name__ == "__main__":
    main()

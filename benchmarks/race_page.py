"""What the race says: its verdicts, its tables and its figures, all from the recorded runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import numpy as np
import peers
import standings
from figures import ACCENT
from standings import Curve

PICTURE = (
    "race_large.svg",
    "Held-out divergence against seconds of learning, 99 minutes, one thread",
)
SIZES = {"small": "30 s", "medium": "4 min", "large": "99 min"}
STYLES = {  # colour and dashes: no two have both the same lightness and the same dashes
    "default": (ACCENT, "-"), "paper": ("#e69f00", "--"), "batch": ("#d9a514", ":"),
    "minibatch": ("#083d56", "-"), "partial": ("#2f86b0", "--"), "mu": ("#083d56", ":"),
    "torchnmf": ("#2d8a68", "-."), "diffsptk": ("#b05a93", (0, (1, 1))), "oobss": ("#888888", "-"),
}  # fmt: skip
YARDSTICK_SOONER, YARDSTICK_LOWER, ONE_PASS_LOWER = 100, 0.08, 0.35
KL_SOONER = 20


@dataclass(frozen=True)
class Heat:
    """One set, one K, one number of threads and seconds: the curves of all its contestants."""

    size: str
    kind: str
    n_components: int
    threads: int
    budget_s: float
    beta_loss: str
    curves: dict[str, list[Curve]]

    @property
    def name(self) -> str:
        kind = "music and speech" if self.kind == "both" else self.kind
        divergence = "" if self.is_paper else ", Kullback-Leibler"
        return f"{SIZES[self.size]} of {kind}, K = {self.n_components}{divergence}"

    @property
    def is_paper(self) -> bool:
        """Whether its divergence is that of the paper."""
        return self.beta_loss == "itakura-saito"

    @property
    def peers(self) -> list[str]:
        return [name for name in peers.PEERS if name in self.curves]

    def sooner(self, peer: str) -> float:
        """The peer's time to its own end over the default's time to the same."""
        theirs = self.curves[peer]
        target = standings.end(theirs)
        return standings.seconds_to(theirs, target) / standings.seconds_to(
            self.curves["default"], target
        )

    def lower(self, peer: str) -> float:
        """By what share the default is lower when the peer ends."""
        theirs = self.curves[peer]
        ours = standings.at(self.curves["default"], standings.end_s(theirs))
        return 1 - ours / standings.end(theirs)


def heats(results: dict[str, Any]) -> list[Heat]:
    found: dict[tuple[Any, ...], dict[str, list[Curve]]] = {}
    for run in results["runs"]:
        if run["max_passes"] is None:
            names = ("size", "kind", "n_components", "threads", "budget_s")
            key = (*(run[name] for name in names), run.get("beta_loss", "itakura-saito"))
            place = found.setdefault(key, {})
            place.setdefault(run["contestant"], []).append(Curve.of(run["points"]))
    every = [Heat(*key, curves) for key, curves in found.items() if "default" in curves]
    return sorted(every, key=lambda heat: list(SIZES).index(heat.size))


# ---- the verdicts ----


def lost(results: dict[str, Any]) -> Iterator[tuple[Heat, str, list[standings.Loss]]]:
    """Where a peer is lower than the default at any recorded time from its first pass on."""
    for heat in heats(results):
        for peer in heat.peers:
            moments = standings.losses(heat.curves["default"], heat.curves[peer])
            if moments:
                yield heat, peer, moments


@dataclass(frozen=True)
class Yardstick:
    """`MiniBatchNMF` after many passes over music, and the default on the way there."""

    heat: Heat
    theirs: list[Curve]
    plain: bool  # whether it got the frames as a user would scale them

    @property
    def sooner(self) -> float:
        reached = standings.seconds_to(self.heat.curves["default"], standings.end(self.theirs))
        return standings.end_s(self.theirs) / reached

    @property
    def lower(self) -> float:
        return 1 - standings.end(self.heat.curves["default"]) / standings.end(self.theirs)


def yardsticks(results: dict[str, Any]) -> list[Yardstick]:
    found = []
    for heat in heats(results):
        if (heat.kind, heat.threads) != ("music", 1) or not heat.is_paper:
            continue
        for plain in (True, False):
            theirs = [
                Curve.of(run["points"])
                for run in results["runs"]
                if run["max_passes"] is not None
                and (run["size"], run["n_components"], run["plain"])
                == (heat.size, heat.n_components, plain)
            ]
            if theirs:
                found.append(Yardstick(heat, theirs, plain))
    return found


def one_pass(results: dict[str, Any]) -> dict[str, float]:
    """Divergence after one pass over the large set at the largest K, where one was completed."""
    largest = max(
        (
            heat
            for heat in heats(results)
            if (heat.size, heat.kind) == ("large", "music") and heat.is_paper
        ),
        key=lambda heat: (heat.n_components, -heat.threads),
        default=None,
    )
    if largest is None:
        return {}
    found = {}
    for name in ("default", "minibatch", "partial"):
        curves = largest.curves.get(name, [])
        seconds = standings.middle([curve.first_pass_s for curve in curves] or [np.inf])
        if np.isfinite(seconds):
            found[name] = standings.at(curves, seconds)
    return found


def answer(results: dict[str, Any]) -> str:
    others = [heat for heat in heats(results) if heat.threads == 1]
    every = [(heat, peer) for heat in others for peer in heat.peers]
    sooner = [heat.sooner(peer) for heat, peer in every]
    lower = [heat.lower(peer) for heat, peer in every]
    n_lost = len(list(lost(results)))
    ahead = "never behind" if n_lost == 0 else f"behind for a while in {n_lost} comparisons"
    return (
        f"In {len(every)} comparisons with other packages on one thread, the default "
        f"reaches the final divergence of the other package {np.median(sooner):.0f} × sooner, and "
        f"is {np.median(lower):.0%} lower when that package ends (medians). After its first pass, "
        f"the default is {ahead}."
    )


# ---- the text ----


def section(results: dict[str, Any]) -> str:
    settings, machine = results["settings"], results["machine"]
    frontend = settings["frontend"]
    in_part = f" Quick: one in {settings['one_in']} recordings of the largest sets."
    parts = [
        "## The race",
        "Held-out divergence per bin against seconds of learning, for `ondes` and for other "
        "packages, the peers: processor seconds of one thread, wall seconds of several. Each of "
        "them runs in a process of its own. All dictionaries are "
        f"scored alike, at converged activations, on {settings['n_held_out']} frames from other "
        "seconds, tracks or sentences. Peers start from the same first dictionary as the "
        "default; the time to compute it counts for the default only. For the peers, frames and "
        "bins are scaled to mean one, because their floors are absolute; the divergence is "
        f"invariant to this. Early stopping is off, and r = {peers.R} means the same for all. "
        f"{frontend['sr']} Hz, window {frontend['n_fft']}, "
        f"medians of up to {settings['n_seeds']} seeds. {machine['cpu']}, {machine['cores']} "
        f"cores." + (in_part if settings["one_in"] > 1 else ""),
        _verdicts(results),
        "Each entry says how many times sooner the default reaches the divergence that the peer "
        "ends with, and how much lower the default is when the peer ends. Batch algorithms, which "
        f"keep all activations, get {settings['batch_subset']:,} frames of the largest sets.",
        _table(results, 1),
        *_kullback_leibler(results),
        "On all cores:",
        _table(results, machine["cores"]),
        *(
            f"![Held-out divergence against seconds, {title}](../figures/race_{name}.svg)"
            for name, title in FIGURES.items()
            if name != "kl" or any(not heat.is_paper for heat in heats(results))
        ),
        "Not in the race: "
        + "; ".join(f"{name}, which {why}" for name, why in results["left_out"].items())
        + ".",
    ]
    return "\n\n".join(parts)


def _verdicts(results: dict[str, Any]) -> str:
    lines = []
    for found in yardsticks(results):
        ours, theirs = found.heat.curves["default"], found.theirs
        passes = standings.middle([curve.passes[-1] for curve in theirs])
        how = "the data" if found.plain else "each frame and each bin"
        least = YARDSTICK_LOWER if found.plain else 0.0
        target = f"{YARDSTICK_SOONER} ×" + (f" and {least:.0%}" if least else "")
        met = found.sooner >= YARDSTICK_SOONER and found.lower >= least
        lines.append(
            f"- {found.heat.name}: `MiniBatchNMF`, with {how} scaled to mean one, ends at "
            f"{standings.end(theirs):.3f} after {passes:.0f} passes and "
            f"{standings.end_s(theirs):.1f} s. The default reaches this value "
            f"{_two_digits(found.sooner)} × sooner, and is {found.lower:.1%} lower after "
            f"{standings.end_s(ours):.1f} s. Target: {target}; {_met(met)}."
        )
    ends = one_pass(results)
    ours = ends.pop("default", None)
    for name, reached in ends.items() if ours else ():
        lower = 1 - ours / reached
        lines.append(
            f"- One pass over {SIZES['large']} of music at the largest K: the default reaches "
            f"{ours:.3f}, {peers.CONTESTANTS[name].title} {reached:.3f}, so the default is "
            f"{lower:.1%} lower. Target: "
            f"{ONE_PASS_LOWER:.0%}; {_met(lower >= ONE_PASS_LOWER)}."
        )
    behind = list(lost(results))
    if not behind:
        lines.append("- After its first pass, the default is never behind a peer on any set.")
    for heat, peer, moments in behind:
        worst = max(moments, key=lambda moment: moment.share)
        lines.append(
            f"- {heat.name}, {heat.budget_s:g} s each: {peers.CONTESTANTS[peer].title} on "
            f"{heat.threads} thread{'s' if heat.threads > 1 else ''} is ahead of the default by "
            f"up to {worst.share:.1%} ({worst.peers:.4f} against {worst.ours:.4f} after "
            f"{worst.seconds:.2f} s)."
        )
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "met" if is_met else "not met"


def _kullback_leibler(results: dict[str, Any]) -> list[str]:
    """The rows of the divergence that separation uses, where there are any."""
    rows = [heat for heat in heats(results) if not heat.is_paper]
    if not rows:
        return []
    longer = [heat for heat in rows if heat.size != "small"]
    slowest = min((heat.sooner(peer) for heat in longer for peer in heat.peers), default=np.inf)
    higher = sum(heat.lower(peer) < 0 for heat in rows for peer in heat.peers)
    return [
        "With the divergence of Kullback-Leibler on magnitudes, each frame at mean one, which is "
        "what separation uses; bins stay as they are, since this divergence weighs them by their "
        f"level. From 4 minutes on the default is {_two_digits(slowest)} × sooner or more (target: "
        f"{KL_SOONER}; {_met(slowest >= KL_SOONER)}), and ends higher {higher} times (target: 0; "
        f"{_met(higher == 0)}).",
        _table(results, 1, is_paper=False),
    ]


def _table(results: dict[str, Any], threads: int, is_paper: bool = True) -> str:
    rows = [
        heat for heat in heats(results) if heat.threads == threads and heat.is_paper == is_paper
    ]
    columns = [name for name in peers.PEERS if any(name in heat.curves for heat in rows)]
    titles = [peers.CONTESTANTS[name].title for name in columns]
    lines = [
        "| set | seconds each | the default ends at | " + " | ".join(titles) + " |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for heat in rows:
        cells = [_entry(heat, name) if name in heat.curves else "" for name in columns]
        ends = f"{standings.end(heat.curves['default']):.3f}"
        lines.append(f"| {heat.name} | {heat.budget_s:g} | {ends} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _entry(heat: Heat, peer: str) -> str:
    if not np.isfinite(standings.end(heat.curves[peer])):
        return "diverges"
    sooner, lower = heat.sooner(peer), heat.lower(peer)
    if not np.isfinite(lower):
        return "ends before the default begins"
    if sooner == 0:
        return f"never, {-lower:.1%} higher"
    return f"{_two_digits(sooner)} ×, {lower:.1%}"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.3g}" if value < 1000 else f"{float(f'{value:.2g}'):,.0f}"


def readme_table(results: dict[str, Any]) -> str:
    """For the README: one thread, music, the largest K."""
    rows = [
        heat
        for heat in heats(results)
        if heat.threads == 1 and heat.kind == "music" and heat.is_paper
    ]
    most = max(heat.n_components for heat in rows)
    everyone = [heat for heat in rows if heat.n_components == most and "torchnmf" in heat.curves]
    rows = {heat.size: heat for heat in everyone or rows}
    names = [name for name in peers.PEERS if any(name in heat.curves for heat in rows.values())]
    titles = [f"{SIZES[size]} of music" for size in rows]
    lines = [
        f"Against other packages, K = {most}, one thread: how many times sooner `ondes` reaches "
        "the final held-out divergence of the other package, and how much lower its own divergence "
        "is when the other package ends:",
        "",
        "| | " + " | ".join(titles) + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for name in names:
        cells = [_entry(heat, name) if name in heat.curves else "" for heat in rows.values()]
        lines.append(f"| {peers.CONTESTANTS[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sooner_than(results: dict[str, Any], peer: str, size: str) -> tuple[float, int]:
    """How many times sooner the default has a peer's end value, on music and one thread; its K."""
    rows = [
        heat
        for heat in heats(results)
        if heat.threads == 1 and heat.kind == "music" and heat.is_paper and heat.size == size
        and peer in heat.curves
    ]  # fmt: skip
    heat = max(rows, key=lambda heat: heat.n_components)
    return heat.sooner(peer), heat.n_components


# ---- the figures ----

FIGURES = {
    "small": "30 seconds, one thread",
    "medium": "4 minutes, one thread",
    "large": "99 minutes, one thread",
    "long": "30 seconds at length, one thread",
    "cores": "Music on all cores",
    "kl": "Kullback-Leibler, one thread",
}


def draw(results: dict[str, Any], folder: Path) -> None:
    every = [heat for heat in heats(results) if heat.is_paper]
    others = [heat for heat in heats(results) if not heat.is_paper]
    single = [heat for heat in every if heat.threads == 1]
    longest = max(heat.budget_s for heat in single if heat.size == "small")
    shown = {
        "small": [h for h in single if h.size == "small" and h.budget_s < longest],
        "medium": [h for h in single if h.size == "medium"],
        "large": [h for h in single if h.size == "large"],
        "long": [h for h in single if h.size == "small" and h.budget_s == longest],
        "cores": [h for h in every if h.threads != 1],
        "kl": others,
    }
    for name, chosen in shown.items():
        if chosen:
            _draw(chosen, FIGURES[name], folder / f"race_{name}.svg", results)


def _draw(chosen: Sequence[Heat], title: str, path: Path, results: dict[str, Any]) -> None:
    chosen = sorted(chosen, key=lambda heat: heat.n_components)
    chosen = sorted(chosen, key=lambda heat: (list(SIZES).index(heat.size), heat.kind))
    n_rows = -(-len(chosen) // 2)
    figure = figures.new(2.3 * n_rows + 1.5)
    every = figure.subplots(n_rows, 2, squeeze=False)
    for axes, heat in zip(every.ravel(), chosen, strict=False):
        _draw_heat(axes, heat)
    for axes in every.ravel()[len(chosen) :]:
        axes.set_axis_off()
    for axes in every[-1]:
        axes.set_xlabel("seconds of learning")
    for axes in every[:, 0]:
        axes.set_ylabel("divergence", fontsize=9)
    labelled = {}
    for axes in every.ravel():
        labelled |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figures.title(
        figure, f"{title}: lower and further left is better. Grey: the default's first pass ends."
    )
    figure.legend(
        labelled.values(), labelled, loc="outside lower left", ncols=2, fontsize=9, frameon=False
    )
    figures.save(figure, path, results)


def _draw_heat(axes: Any, heat: Heat) -> None:
    from matplotlib.ticker import NullFormatter

    for name in reversed([name for name in peers.CONTESTANTS if name in heat.curves]):
        curves = heat.curves[name]
        first = standings.middle([curve.seconds[0] for curve in curves])
        times = np.geomspace(first, standings.end_s(curves), 60)
        reached = [standings.at(curves, seconds) for seconds in times]
        colour, dashes = STYLES[name]
        axes.plot(times, reached, color=colour, linestyle=dashes,
                  label=peers.CONTESTANTS[name].title.replace("scikit-learn ", ""),
                  linewidth=2.4 if name == "default" else 1.3)  # fmt: skip
    default = heat.curves["default"]
    lowest = min(standings.end(curves) for curves in heat.curves.values())
    axes.axvline(
        standings.middle([c.first_pass_s for c in default]), color="#bbbbbb", linewidth=1, zorder=0
    )
    axes.set_ylim(0.97 * lowest, 1.05 * max(c.divergence[0] for c in default))
    axes.set_xscale("log")
    axes.set_xlim(left=min(curves[0].seconds[0] for curves in heat.curves.values()) / 1.5)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(heat.name.replace(", Kullback-Leibler", ""), fontsize=9, loc="left")
    axes.grid(alpha=0.25)

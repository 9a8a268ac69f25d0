"""The paper's claims about its experiments, one by one, and what our measurements say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import verdicts
from comparison import Grid, Large, Spread, times_faster
from verdicts import FAILS, HOLDS, IN_PART, VERDICTS, times


@dataclass(frozen=True)
class Claim:
    text: str
    where: str  # section of the paper
    decide: Callable[..., tuple[str, str]]  # from the sets' results to the verdict and its reason
    sets: tuple[str, ...]
    figure: str


REMARKS: dict[str, Callable[[Grid], tuple[str, str]]] = {
    "if r < 1, β must be larger than 1": verdicts.smallest_beta_is_unstable,
    "as long as r > 0.5, stability does not depend on β": verdicts.high_r_is_stable,
    "r < 1 is crucial to compete with batch": verdicts.forgetting_is_crucial,
    "β is a trade-off: above 1, and below N for faster learning": verdicts.best_beta_lies_between,
}
HOW_TO_READ = """\
Divergence is Itakura-Saito, per bin, at converged activations, on frames that were not learned \
from: lower is better. “The paper” is Lefèvre, Bach and Févotte (2011), and “the default” is \
`OnlineNMF()` with its default parameters. As in the paper, β is the number of frames per update, \
N the number of all frames, and r the factor by which one pass scales the past. `make paper` \
measures it again. “Confirmed” with a later commit: `experiments/confirm.py` found the same \
divergences after the same numbers of frames; seconds are those of the first commit."""
CONTRADICTIONS = """\
The paper contradicts itself in three places; each claim is judged as it stands.

- On stability: “if r < 1, β must be larger than 1” and “as long as r > 0.5, stability does not \
depend on β” cannot both hold for β = 1 and 0.5 < r < 1.
- On short signals: “faster” in the abstract, “competes” in the conclusion.
- On its second set: four minutes in the text, three in the caption of the figure.

A run is unstable if its divergence rises by more than 5% above its lowest value once every frame \
has been visited; a cell is, if one of its seeds is. That is judged within the seconds of the run: \
with β = 1 these are a few passes, and more may show more. With β > N/2 a pass has at most one \
update and a remainder, so such cells count as batch and not as online: on the small set also the \
paper's β = 10³."""
OUR_READING = """\
Our interpretation: with one step per visit, activations lag behind the dictionary, and the \
statistics kept from earlier come from activations that lagged even further. Updating the \
dictionary more often does not repair that. On the large set r = 0.7 keeps seven tenths of the \
past over a whole pass, including its poor start. The default computes the activations of each \
frame from scratch in ten or more extrapolated steps, and forgets its first updates quickly."""
SMALL, MEDIUM, LARGE = ("small",), ("medium",), ("large",)
CLAIMS = (
    Claim("β = N and r = 0 is batch", "2.3", verdicts.online_becomes_batch, SMALL, "small"),
    *(Claim(text, "3, small", decide, SMALL, "small-map") for text, decide in REMARKS.items()),
    *(
        Claim(f"the same on medium data: {text}", "3, medium", decide, MEDIUM, "medium-map")
        for text, decide in REMARKS.items()
    ),
    Claim(
        "online is ahead of batch by several orders of magnitude for a wide range of parameters",
        *("3, medium", verdicts.orders_of_magnitude, MEDIUM, "medium-map"),
    ),
    Claim(
        "online on all data is more accurate, in a fraction of batch's time on a subset",
        *("3, large", verdicts.more_accurate_in_a_fraction, LARGE, "large"),
    ),
    Claim(
        "r = 1 is stable at any β",
        "3, summary",
        verdicts.no_forgetting_is_stable,
        SMALL + MEDIUM,
        "medium-map",
    ),
    Claim(
        "with r < 1, a large enough β is stable",
        *("3, summary", verdicts.large_beta_is_stable, SMALL + MEDIUM, "medium-map"),
    ),
    Claim(
        "small β costs time for updates", "3, summary", verdicts.small_beta_costs, MEDIUM, "medium"
    ),
    Claim(
        "small enough β uses the redundancy of the data",
        *("3, summary", verdicts.small_beta_uses_redundancy, MEDIUM, "medium"),
    ),
    Claim(
        "r = 0.7 and β = 10³ are satisfactory",
        *("3, summary", verdicts.the_papers_choice_satisfies, SMALL + MEDIUM + LARGE, "large"),
    ),
    Claim(
        "online is faster on short signals",
        *("abstract", verdicts.faster_on_short_signals, SMALL, "small-map"),
    ),
    Claim(
        "online competes with batch on small data",
        *("conclusion", verdicts.competes_on_short_signals, SMALL, "small-map"),
    ),
    Claim(
        "on large data online is ahead by several orders of magnitude",
        *("conclusion", verdicts.orders_on_large, LARGE, "large"),
    ),
    Claim(
        "online, every sample costs the same time",
        "conclusion",
        verdicts.constant_cost,
        LARGE,
        "large",
    ),
)


def views(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kinds = {"small": Grid, "medium": Grid, "large": Large}
    return {name: kinds[name](found) for name, found in results.items()}


def judge(results: dict[str, dict[str, Any]]) -> list[tuple[Claim, str, str]]:
    """Every claim that was measured, its verdict and the reason."""
    sets = views(results)
    return [
        (claim, *claim.decide(*(sets[name] for name in claim.sets)))
        for claim in CLAIMS
        if sets.keys() >= set(claim.sets)
    ]


def answer(results: dict[str, dict[str, Any]]) -> str:
    """What was found, in two sentences."""
    decided = [verdict for _, verdict, _ in judge(results)]
    n_of = {which: decided.count(which) for which in VERDICTS}
    said = (
        f"Of {len(decided)} claims that the paper makes about its experiments, {n_of[HOLDS]} hold "
        f"here, {n_of[IN_PART]} hold in part and {n_of[FAILS]} do not hold."
    )
    compared = {
        name: (each.default, each.batches[each.best_batch] if name == "large" else each.batch)
        for name, each in views(results).items()
    }
    ahead = "; ".join(
        f"{times(times_faster(batch, default))} sooner on the {name} set, and ends "
        f"{1 - Spread.of(default).end / Spread.of(batch).end:.1%} lower"
        for name, (default, batch) in compared.items()
    )
    return f"{said} The default reaches the level of batch {ahead}."


def picture(results: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The largest set that was measured: its file, and what it shows."""
    largest = [name for name in ("small", "medium", "large") if name in results][-1]
    return f"{largest}.svg", "Held-out divergence against seconds of learning"


def section(results: dict[str, dict[str, Any]]) -> str:
    """The table, claim by claim."""
    rows = [
        f"| {claim.text} | {claim.where} | {claim.decide.__doc__} | **{verdict}** | {reason} "
        f"| [{claim.figure}](../figures/{claim.figure}.svg) |"
        for claim, verdict, reason in judge(results)
    ]
    head = ["| the paper says | section | rule | here it | measured | figure |", "|---" * 6 + "|"]
    return "\n".join(
        [
            HOW_TO_READ,
            "",
            "## The paper's claims",
            "",
            *head,
            *rows,
            "",
            CONTRADICTIONS,
            "",
            OUR_READING,
        ]
    )

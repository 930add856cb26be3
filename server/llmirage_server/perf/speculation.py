"""Speculative decoding: who drafts, how many tokens a step, how many of them hold, by published acceptance lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.catalogue.yaml_files import data_file

SpeculativeMethod = Literal["mtp", "eagle3", "draft_model", "ngram"]
DEFAULT_ACCEPTANCE_RATE = 0.7


@dataclass(frozen=True, slots=True)
class Speculative:
    """Every decoding sequence carries its last token and `num_speculative_tokens` drafted ones through each step.

    mtp: the model's own multi-token prediction layer drafts, once for each token. eagle3: a head of one layer does, after
    the hidden states of three of the model's. draft_model: a small model on the same GPUs, split the same way. ngram: drafts
    are looked up in the text, which takes no time on the GPUs.

    acceptance_rate: chance that a drafted token holds, given that those before it did. acceptance_rates: by position, the
    share of drafts that hold up to there and it; instead of acceptance_rate. acceptance_source: where they come from.
    """

    num_speculative_tokens: int
    method: SpeculativeMethod = "mtp"
    draft_model: str | None = None
    acceptance_rate: float = DEFAULT_ACCEPTANCE_RATE
    acceptance_rates: tuple[float, ...] = ()
    acceptance_source: str = ""

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens that a sequence gains in a step: 1 + a + a^2 + ... + a^k (Leviathan et al. 2023, eq. 1)."""
        return 1.0 + sum(self.acceptance_rates or chances(self.acceptance_rate, self.num_speculative_tokens))


def chances(rate: float, drafts: int) -> list[float]:
    """By position, the chance that the drafts up to there hold, if each holds with chance `rate` after those before it."""
    return [rate**position for position in range(1, drafts + 1)]


def rate_of_length(length: float, drafts: int) -> float:
    """Return the acceptance rate with which a step brings `length` tokens on average, the model's own included."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 + sum(chances(middle, drafts)) < length else (low, middle)
    return (low + high) / 2


def length_problem(length: float, drafts: int) -> str | None:
    """Return the problem with an acceptance length, as the end of a sentence."""
    return (
        None if 1 <= length <= 1 + drafts else f"must be from 1 to {1 + drafts} with {drafts} draft tokens, not {length:g}"
    )


def rates_problem(rates: Sequence[float], drafts: int) -> str | None:
    """Return the problem with acceptance rates by position, as the end of a sentence."""
    if len(rates) != drafts:
        return f"must be as many as num_speculative_tokens: {drafts}, not {len(rates)}"
    if any(after > before for before, after in pairwise(rates)):
        return "must not rise: a draft token holds only if those before it do"
    return None


def with_published_acceptance(speculative: Speculative, model: ModelSpec) -> Speculative:
    """Return the same with the published measurement for the model, method and number of draft tokens, if there is one.

    Lengths of other numbers of draft tokens lie on the line between their neighbours. Outside, the acceptance rate of the
    nearest one counts.
    """
    file = data_file("acceptance.yaml", "curves")
    for name in file.names:
        entry = file.entry(name)
        if entry["method"] != speculative.method or model.name not in entry["models"]:
            continue
        drafts = speculative.num_speculative_tokens
        published = {int(count): float(value) for count, value in entry["lengths"].items()}
        counts = sorted(published)
        at = min(max(drafts, counts[0]), counts[-1])
        below, above = max(c for c in counts if c <= at), min(c for c in counts if c >= at)
        share = (at - below) / (above - below) if above > below else 0.0
        length = published[below] + share * (published[above] - published[below])
        source = f"published for {entry['workload']}: {entry['source']}"
        return replace(speculative, acceptance_rate=rate_of_length(length, at), acceptance_source=source)
    return speculative

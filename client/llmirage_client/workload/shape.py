"""The shape of a workload when each of its roots runs once: distributions, arrivals, and what prefix caching can give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from llmirage_client.workload.prompts import PrefixTree, PromptWriter
from llmirage_client.workload.session import Workload
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.statistics import Summary, summarize

_BARS = 12
_TIME_BARS = 60
_WAITS = "wait before a turn, s"
_GAPS = "gap between arrivals, s"


@dataclass(slots=True, frozen=True)
class Reuse:
    """Prompt tokens that a cache without limits holds already when they come, over all requests.

    own_tokens: from earlier requests of the same conversation, or of the one it was forked from. other_tokens: from others.
    """

    prompt_tokens: int
    own_tokens: int
    other_tokens: int

    @property
    def share(self) -> float:
        return (self.own_tokens + self.other_tokens) / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True, frozen=True)
class Histogram:
    """bars: how many values are in each of equal parts of the range from the least value to the largest."""

    summary: Summary
    bars: tuple[int, ...]


def _bars(values: list[float], bars: int = _BARS) -> tuple[int, ...]:
    """Return the counts of values in equal parts of their range; in the middle if all are the same."""
    array = np.array(values, dtype=np.float64)
    low, width = float(array.min()), float(array.max() - array.min())
    if not 0 < width < np.inf:
        return tuple(len(values) if bar == bars // 2 else 0 for bar in range(bars))
    places = np.minimum((array - low) / width * bars, bars - 1).astype(np.int64)
    return tuple(np.bincount(places, minlength=bars).tolist())


@dataclass(slots=True, frozen=True)
class WorkloadShape:
    """Distributions, prefix reuse and arrivals of a workload.

    distributions: by what is counted; those without a value are left out. counted_requests: fewer than there are when
    the traversal was cut. assumed_replies: requests of which nothing says how long the reply is.
    """

    distributions: Mapping[str, Histogram]
    reuse: Reuse
    counted_requests: int
    assumed_replies: int
    arrivals_per_s: float | None
    arrival_bars: tuple[int, ...]  # how many arrive in each of equal parts of the time; none without times
    gap_variation: float | None  # standard deviation of the gaps between arrivals over their mean; 1 for Poisson


def shape(workload: Workload, encoder: PromptEncoder, assumed_reply_tokens: int, most_requests: int) -> WorkloadShape:
    """Walk through at most `most_requests` requests."""
    sessions = workload.sessions.values()
    tree = PrefixTree()
    prompts: list[float] = []
    new: list[float] = []
    replies: list[float] = []
    own = other = 0
    for prompt in islice(PromptWriter(workload, encoder, assumed_reply_tokens), most_requests):
        found = min(tree.match(prompt.segments), max(prompt.tokens - 1, 0))  # the last token is always computed
        tree.put(prompt.cached)
        mine = min(found, prompt.continued_tokens)
        own, other = own + mine, other + found - mine
        prompts.append(prompt.tokens)
        new.append(prompt.tokens - found)
        if prompt.reply_tokens is not None:
            replies.append(prompt.reply_tokens)
    fans = [len(branch.children) for s in sessions for turn in s.turns for branch in turn.branches]
    fans += [len(round_.children) for s in sessions for round_ in s.rounds]
    arrivals = sorted(s.arrival_s for s in (workload.sessions[root] for root in workload.roots) if s.arrival_s is not None)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    samples: dict[str, list[float]] = {
        "turns of a session": [len(s.turns) for s in sessions if s.turns],
        "children of a branch": [*map(float, fans)],
        "prompt tokens": prompts,
        "of these not cached": new,
        "reply tokens": replies,
        _WAITS: [turn.delay_s for s in sessions for turn in s.turns[1:]],
        _GAPS: gaps,
    }
    distributions = {
        name: Histogram(summary, _bars(values))
        for name, values in samples.items()
        if (summary := summarize(values)) is not None
    }
    waits = distributions.get(_WAITS)
    if waits is not None and not waits.summary.max:
        del distributions[_WAITS]
    gap = distributions[_GAPS].summary if _GAPS in distributions else None
    regular = gap is not None and gap.avg > 0
    return WorkloadShape(
        distributions=distributions,
        reuse=Reuse(int(sum(prompts)), own, other),
        counted_requests=len(prompts),
        assumed_replies=len(prompts) - len(replies),
        arrivals_per_s=1 / gap.avg if gap is not None and regular else None,
        arrival_bars=_bars(arrivals, _TIME_BARS) if regular else (),
        gap_variation=gap.std / gap.avg if gap is not None and regular else None,
    )

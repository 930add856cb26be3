"""What a run says about conversations that repeat, or are fewer than its concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.arrays import Bools, Floats
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.repeats import NOTABLE, Repeats
from llmirage_client.workload.common_beginnings import common_shares
from llmirage_client.workload.session import Workload

_COUNTS = ("prompt", "prompt_cache_read", "completion")


def repeats_in_run(
    workload: Workload,
    options: RunOptions,
    roots_taken: int,
    columns: Columns,
    names: Callable[[], Sequence[str]],
    endpoint_new: bool = True,
) -> Repeats | None:
    """names: of the sessions, one a row. endpoint_new: it cannot know prompts of an earlier run. None: nothing to tell."""
    closed = options.rates is None and options.user_rate_per_s is None and not options.fixed_schedule
    limited = options.open_ended or options.num_conversations is not None
    slots = options.concurrency if closed and not limited else None
    repeats = roots_taken > len(workload.roots) or options.sampling == "random"
    fewer = slots is not None and slots > max(roots_taken - options.first_root, len(workload.roots))
    if not repeats and not fewer and (endpoint_new or (_known_share(columns) or 0.0) <= NOTABLE):
        return None
    return _repeats_of(names(), columns, options.vary, slots if fewer else None, common_shares(workload), endpoint_new)


def _repeats_of(
    names: Sequence[str],
    columns: Columns,
    varied: bool,
    unfilled: int | None,
    shared: Mapping[str, float],
    endpoint_new: bool,
) -> Repeats | None:
    """names: of the sessions, one a row. unfilled: see Repeats, if there are so few. shared: by name, the share of a first
    prompt that other conversations begin with; without those that inherit a context. None if there is nothing to tell.
    """
    numbers = columns.conversation.tolist()
    depths = columns.agent_depth
    of_roots = (depths == depths.min(initial=1)).tolist()  # of orchestrators, which send nothing, their children
    roots = {number: name for name, number, root in zip(names, numbers, of_roots, strict=True) if root}
    counts = Counter(roots.values())
    first: dict[str, int] = {}
    for name, number in zip(names, numbers, strict=True):
        first[name] = min(number, first.get(name, number))
    most = max(counts.values(), default=0)
    begun = np.array([shared.get(name, 0.0) for name in names])
    counted = np.array(
        [varied or first[name] == number for name, number in zip(names, numbers, strict=True)], dtype=np.bool_
    )
    found = Repeats(
        conversations=len(roots),
        distinct=len(counts),
        most=most,
        varied=varied,
        unfilled=unfilled if unfilled is not None and len(roots) < unfilled and most == 1 else None,
        hit_share=_hit_share(names, first, columns, begun) if most > 1 else None,
        known_share=None if endpoint_new else _known_share(columns, begun, counted),
    )
    return found if most > 1 or found.unfilled is not None or found.known else None


def _hit_share(names: Sequence[str], first: Mapping[str, int], columns: Columns, begun: Floats) -> float | None:
    """begun: the share of its first prompt that other conversations of the workload begin with, a row."""
    prompt, cached, reply = (columns.usage.get(f"usage_{name}_tokens") for name in _COUNTS)
    if prompt is None or cached is None or reply is None:
        return None
    known = columns.ok & ~np.isnan(cached)
    before = columns.continues
    own = np.where((before >= 0) & known[before], (prompt + np.nan_to_num(reply))[before], 0.0)
    places = list(zip(names, columns.turn_index.tolist(), strict=True))
    again = np.array([first[name] for name in names]) != columns.conversation
    found_first = {places[i]: cached[i] for i in np.flatnonzero(known & ~again).tolist()}
    own = np.fmax(own, np.where(columns.turn_index == 0, begun, 0.0) * prompt)
    could = np.maximum([found_first.get(place, 0.0) for place in places], own)
    counted = known & columns.measured
    total = cached[counted].sum()
    more = np.maximum(cached - could, 0.0)[counted & again].sum()
    return float(more / total) if total else None


def _known_share(columns: Columns, begun: Floats | float = 0.0, counted: Bools | bool = True) -> float | None:
    """Of the tokens of first prompts, those found cached beyond what other conversations begin with. counted: which rows."""
    prompt, cached, _ = (columns.usage.get(f"usage_{name}_tokens") for name in _COUNTS)
    if prompt is None or cached is None:
        return None
    rows = columns.ok & (columns.turn_index == 0) & (columns.agent_depth == 0) & ~np.isnan(cached + prompt) & counted
    total = prompt[rows].sum()
    return float(np.maximum(cached - prompt * begun, 0.0)[rows].sum() / total) if total else None

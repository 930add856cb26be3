"""The words of synthetic prose: sentence patterns and their slots, from data/prose.json. Plain text, no tokens.

A pattern is a sentence without its full stop; `{slot}` is filled from the topic's list of that name, or from COMMON. The
same slot used twice with a number (`{part}`, `{part2}`) takes two different words. Every word is a common one, so that
usual vocabularies have it as one token; words that a vocabulary splits, and patterns that need them, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Slots = Mapping[str, Sequence[str]]
"""Words by the name of the slot that they fill."""


def _slots(words: Mapping[str, str]) -> Slots:
    return {name: tuple(listed.split()) for name, listed in words.items()}


_BANK = json.loads((Path(__file__).parent / "data" / "prose.json").read_text("utf-8"))
COMMON = _slots(_BANK["common"])
TOPICS: Sequence[Slots] = tuple(map(_slots, _BANK["topics"].values()))
OPENINGS: Sequence[str] = tuple(_BANK["openings"])  # sentences that open a text
FOLLOWING: Sequence[str] = tuple(sentence for group in _BANK["following"].values() for sentence in group)


def first_words() -> list[str]:
    """Every word that can begin a sentence."""
    return sorted({pattern.split()[0] for pattern in (*OPENINGS, *FOLLOWING)} | {"An"})


def words() -> list[str]:
    """Every word that can stand in a sentence."""
    found = {word for pattern in (*OPENINGS, *FOLLOWING) for word in pattern.split() if word.isalpha()} | {"an", "An"}
    for slots in (COMMON, *TOPICS):
        found.update(word for choices in slots.values() for word in choices)
    return sorted(found)

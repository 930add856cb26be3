"""Topics that a text touches, for moderation, and what the simulated model refuses, in which words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from llmirage_shared.yaml_lines import LOADER

FLAGGED_FROM = 0.5
_MOST_JUDGED = 20_000  # characters of all texts of a request beside a reply: other streams must not wait
_PART = re.compile(r"<(\w+)>")

CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip
# Of omni-moderation: which judge images too.
IMAGE_CATEGORIES = frozenset(
    ("self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "violence", "violence/graphic")
)


def category_scores(text: str) -> dict[str, float]:
    """Return a score between 0 and 1 for each category, the same for the same text."""
    plain = " ".join(text.casefold().split())
    found = {}
    for category in CATEGORIES:
        weights = [weight for weight, pattern in _compiled()[category] if pattern.search(plain)]
        # The last digits differ from text to text, as a model's would.
        jitter = zlib.crc32(f"{category}\0{plain}".encode("utf-8", "replace")) / 2**32
        found[category] = max(weights) + 0.05 * jitter if weights else 10.0 ** (-6.0 + 3.0 * jitter)
    # What is worse implies what is less so.
    for worse in CATEGORIES:
        if "/" in worse:
            less = worse.partition("/")[0]
            found[less] = max(found[less], 0.9 * found[worse])
    return {category: round(score, 12) for category, score in found.items()}


def judgement(text: str, has_text: bool = True, has_image: bool = False) -> dict[str, Any]:
    """Return the result of moderation. Images are never flagged."""
    scores = category_scores(text)
    flags = {category: score >= FLAGGED_FROM for category, score in scores.items()}
    applied = {
        category: (["text"] if has_text else []) + (["image"] if has_image and category in IMAGE_CATEGORIES else [])
        for category in CATEGORIES
    }
    return {
        "flagged": any(flags.values()),
        "categories": flags,
        "category_scores": scores,
        "category_applied_input_types": applied,
    }


def moderated(texts: Sequence[str], model: str) -> list[dict[str, Any]]:
    """Return the results of moderation that stand in a reply whose request asks for it, of equal shares of a limit."""
    most = _MOST_JUDGED // len(texts)
    return [{"type": "moderation_result", "model": model, **judgement(text[:most])} for text in texts]


@lru_cache(maxsize=1)
def _compiled() -> dict[str, list[tuple[float, re.Pattern[str]]]]:
    """For each category of data/moderation.yaml weights and expressions."""
    data = yaml.load((Path(__file__).parent / "data" / "moderation.yaml").read_text("utf-8"), LOADER)
    found: dict[str, list[tuple[float, re.Pattern[str]]]] = {}
    for category, lines in data["categories"].items():
        pairs = (line.split(" ", 1) for line in lines.splitlines())
        whole = ((weight, _PART.sub(lambda part: data["parts"][part[1]], text)) for weight, text in pairs)
        found[category] = [(float(weight), re.compile(text)) for weight, text in whole]
    return found


REFUSED = ("illicit/violent", "self-harm/instructions", "sexual/minors", "hate/threatening")
MOST_CHARACTERS = 1_000

_SENTENCES = (
    "I'm sorry, but I can't help with that.",
    "I'm sorry, but I can't assist with that request.",
    "I can't help with this, as it could lead to people being harmed.",
)
# One of these is in every text that is refused: what most messages cost.
_SIGNS = (
    "bomb", "explosive", "grenade", "gun", "firearm", "silencer", "nerve agent", "molotov", "myself", "yourself", "oneself",
    "suicide", "sex", "erotic", "porn", "nude", "naked", "orgasm", "masturbat", "blowjob", "immigrants", "foreigners",
    "muslims", "jews", "christians", "gays", "women", "black people", "white people", "asians", "refugees",
)  # fmt: skip


def is_refused(text: str) -> bool:
    """Return if the model refuses to answer this message."""
    return len(text) <= MOST_CHARACTERS and _is_refused(text)


@lru_cache(maxsize=2048)
def _is_refused(text: str) -> bool:
    """Agents send their task with every turn: each text is looked at once."""
    folded = text.casefold()
    if not any(sign in folded for sign in _SIGNS):
        return False
    plain = " ".join(folded.split())
    return any(pattern.search(plain) for category in REFUSED for _, pattern in _compiled()[category])


def refusal_text(key: int) -> str:
    """Return the words of a refusal. key: any number that tells replies apart."""
    return _SENTENCES[key % len(_SENTENCES)]

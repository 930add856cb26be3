"""Scores of a text by the words in it: enough that what tests send is flagged, and what people say is not.

Nothing here understands a text. Each category has expressions with a weight; the strongest that is found makes the score.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import lru_cache

from llmirage_server.replies.data_file import read_data

FLAGGED_FROM = 0.5
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
    """A score between 0 and 1 for each category, the same for the same text."""
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


def has_sign_of(text: str, categories: Iterable[str]) -> bool:
    """Whether an expression of one of these categories is in the text."""
    plain = " ".join(text.casefold().split())
    return any(pattern.search(plain) for category in categories for _, pattern in _compiled()[category])


@lru_cache(maxsize=1)
def _compiled() -> dict[str, list[tuple[float, re.Pattern[str]]]]:
    """For each category of data/moderation.yaml weights and expressions."""
    data = read_data("moderation.yaml")
    found: dict[str, list[tuple[float, re.Pattern[str]]]] = {}
    for category, lines in data["categories"].items():
        pairs = (line.split(" ", 1) for line in lines.splitlines())
        whole = ((weight, _PART.sub(lambda part: data["parts"][part[1]], text)) for weight, text in pairs)
        found[category] = [(float(weight), re.compile(text)) for weight, text in whole]
    return found

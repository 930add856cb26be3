"""What the simulated model refuses, and in which words.

A message is refused when it asks for what /v1/moderations flags as one of `REFUSED`: instructions for weapons or for
self-harm, sexual content about minors, threats against groups of people. Long messages are never refused: they are data, and
other requests should not pay for the search.
"""

from __future__ import annotations

from functools import lru_cache

from llmirage_server.replies.moderation import has_sign_of

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
    """Whether the model refuses to answer this message."""
    return len(text) <= MOST_CHARACTERS and _is_refused(text)


@lru_cache(maxsize=2048)
def _is_refused(text: str) -> bool:
    """Agents send their task with every turn: each text is looked at once."""
    plain = text.casefold()
    if not any(sign in plain for sign in _SIGNS):
        return False
    return has_sign_of(text, REFUSED)


def refusal_text(key: int) -> str:
    """What is said instead of an answer. key: any number that tells replies apart."""
    return _SENTENCES[key % len(_SENTENCES)]

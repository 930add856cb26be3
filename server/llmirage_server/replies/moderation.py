"""Scores of a text by the words in it: enough that what tests send is flagged, and what people say is not.

Nothing here understands a text. Each category has expressions with a weight; the strongest that is found makes the score.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

FLAGGED_FROM = 0.5

CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip
# Of omni-moderation: which judge images too.
IMAGE_CATEGORIES = frozenset(
    ("self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "violence", "violence/graphic")
)

_HURT = r"(?:kill(?:ing|ed)?|murder(?:ing|ed)?|shoot(?:ing)?|stab(?:bing)?|strangle|slaughter|beat up|torture)"
_YOU = r"(?:you|him|her|them|everyone|everybody|people|someone|somebody|my \w+|that (?:man|woman|guy)|these people|all of)"
_SELF = r"(?:myself|my own life)"
_GROUP = r"(?:immigrants|foreigners|muslims|jews|christians|gays|women|black people|white people|asians|refugees)"
_MINOR = r"(?:child|children|minor|minors|underage|schoolgirl|schoolboy|toddler)"
_SEX = r"(?:sex|sexual|sexually|erotic|porn|pornographic|nude|naked|orgasm|masturbat\w*|blowjob)"
_WEAPON = r"(?:bomb|bombs|explosive|explosives|pipe bomb|grenade|gun|firearm|silencer|nerve agent|molotov)"
_CRIME = r"(?:steal|shoplift|hack into|launder money|counterfeit|forge|smuggle|cook meth|make meth|pick a lock|evade taxes)"
_MAKE = r"(?:make|build|construct|assemble|buy|get|create|3d.?print)"
_INSULT = r"(?:idiot|moron|loser|stupid|worthless|pathetic|disgusting|bitch|bastard|asshole|scum|ugly|dumb)"

_EXPRESSIONS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "harassment": (
        (0.88, rf"(?:you|you're|you are|he is|she is|they are)(?: \w+){{0,3}} {_INSULT}\b"),
        (0.62, rf"\b(?:shut up|{_INSULT} (?:like you|person))\b"),
        (0.6, rf"\b(?:i will|i'll|i'm going to|gonna|want to) {_HURT} (?:you|him|her|them)\b"),
    ),
    "harassment/threatening": (
        (0.86, rf"\b(?:i will|i'll|i'm going to|i am going to|gonna|want to|wanna) {_HURT} {_YOU}\b"),
        (0.75, r"\byou(?:'ll| will)? (?:are dead|regret this|die)\b"),
    ),
    "hate": (
        (0.9, rf"\b(?:i )?(?:hate|despise|detest)(?: all)?(?: the| these)? {_GROUP}\b"),
        (0.82, rf"\b{_GROUP} (?:are|should)(?: all)? (?:vermin|animals|inferior|subhuman|die|be (?:killed|exterminated))\b"),
    ),
    "hate/threatening": (
        (0.9, rf"\b{_HURT}(?: all)?(?: the| these)? {_GROUP}\b"),
        (0.85, rf"\b{_GROUP} should(?: all)? (?:die|be killed|be exterminated)\b"),
    ),
    "illicit": (
        (0.87, rf"\bhow (?:to|do i|can i|would i)(?: \w+){{0,3}} {_CRIME}\b"),
        (0.84, rf"\bhow (?:to|do i|can i|would i) {_MAKE}(?: \w+){{0,3}} {_WEAPON}\b"),
    ),
    "illicit/violent": ((0.86, rf"\bhow (?:to|do i|can i|would i) {_MAKE}(?: \w+){{0,3}} {_WEAPON}\b"),),
    "self-harm": (
        (0.93, rf"\b{_HURT} {_SELF}\b"),
        (
            0.9,
            r"\b(?:suicide|suicidal|self[- ]harm|cut(?:ting)? myself|hurt(?:ing)? myself|end(?:ing)? my life|hang myself)\b",
        ),
    ),
    "self-harm/intent": (
        (0.92, r"\bi (?:want|am going|plan|intend|will|am about)(?: to)? (?:kill|hurt|cut|hang) myself\b"),
        (0.9, r"\bi (?:want to die|want to end my life|will end my life|am going to commit suicide|feel suicidal)\b"),
        (0.9, r"\bi'm (?:going to|gonna|about to) (?:kill|hurt|cut|hang) myself\b"),
    ),
    "self-harm/instructions": (
        (0.9, r"\b(?:how (?:to|do i|can i)|best way to|ways to) (?:kill|hurt|cut|hang) (?:myself|yourself|oneself)\b"),
        (0.9, r"\b(?:how (?:to|do i|can i)|best way to|ways to) commit suicide\b"),
    ),
    "sexual": (
        (0.8, rf"\b{_SEX} (?:story|scene|act|acts|video|pictures?|fantas\w+|content)\b"),
        (0.7, r"\b(?:porn\w*|erotic\w*)\b"),
    ),
    "sexual/minors": ((0.95, rf"\b{_SEX}\b[^.!?]{{0,60}}\b{_MINOR}\b|\b{_MINOR}\b[^.!?]{{0,60}}\b{_SEX}\b"),),
    "violence": (
        (0.94, rf"\b{_HURT} {_YOU}\b"),
        (0.72, r"\b(?:massacre|bloodbath|gore|mutilat\w+|behead\w*|dismember\w*|blood everywhere)\b"),
    ),
    "violence/graphic": ((0.86, r"\b(?:mutilat\w+|behead\w*|dismember\w*|disembowel\w*|blood everywhere|guts|entrails)\b"),),
}


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
    return {
        category: [(weight, re.compile(expression)) for weight, expression in expressions]
        for category, expressions in _EXPRESSIONS.items()
    }

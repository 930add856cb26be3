"""What a text asks for, clause by clause: which are to be done one after the other, and what kind of act each wants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmirage_server.replies.lexicon import VERBS_OF_ACTS

Act = Literal["get", "create", "update", "delete", "send", "run"]

# The acts that each verb stands for.
VERBS: Mapping[str, frozenset[Act]] = {
    verb: frozenset(act for act, verbs in VERBS_OF_ACTS.items() if verb in verbs)
    for verb in frozenset().union(*VERBS_OF_ACTS.values())
}
MOST_CHARACTERS = 2000  # of a text that are looked at: its beginning and its end
_MOST_CLAUSES = 24
_ENDLESS = re.compile(r"(\S{150})\S+")

_QUOTED = re.compile(r"```.*?```|`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”|(?<!\w)'[^'\n]+'(?!\w)", re.DOTALL)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+|\n+")
_VERB = rf"(?:{'|'.join(sorted(VERBS, key=len, reverse=True))}|subtract|multiply|divide|sum|raise|double|halve)"
_THEN = re.compile(
    r"[,;]?\s*\b(?:and\s+)?(?:then|after(?:\s+that|wards|ward)|finally|lastly|next)\b[,:]?\s+(?!week|month|year|(?:mon|"
    r"tues|wednes"
    r"|thurs|fri|satur|sun)day)",
    re.IGNORECASE,
)
_AND = re.compile(
    rf"\s*(?:,\s*(?:and\s+|also\s+|please\s+)*|;\s*|\s+and\s+(?:also\s+|please\s+)?)(?={_VERB}\b|(?:what|who|where|when|"
    rf"which|how|is)\b)",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"^\s*(?:(?:hi|hello|hey)\b[\w\s]{0,15}[,!.]\s*)?(?:please\s+)?(?:(?:can|could|would|will) you(?: please| "
    r"kindly)?\s+|do you know\s+|"
    r"i(?:'d| would) (?:like|love)(?: you)? to\s+|i (?:want|need)(?: you)? to\s+|let'?s\s+|go ahead and\s+|also,?\s+|"
    r"first,?\s+|"
    r"please\s+|now,?\s+|ok(?:ay)?,?\s+)*",
    re.IGNORECASE,
)  # fmt: skip
_SMALL_TALK = re.compile(
    r"\s*(?:(?:hi|hello|hey|thanks|thank you|cheers|great|nice|cool|perfect|awesome|good (?:morning|evening|night|job|"
    r"afternoon)|bye|"
    r"goodbye|ok|okay|sure|yes|no|lol|wow)\b(?! (?:find|search|show|get|what|who|check|look|run|read))[^?]{0,60}"
    r"|i (?:really |just )?(?:love|like|enjoy|hate|adore|prefer)\b(?!.*\?).*"
    r"|my name is\b(?!.*\?).*|(?:who|what) are you\b.*|how are (?:you|things)\b.*|what(?:'s| is) (?:up|your name)\b.*|"
    r"how'?s it going.*"
    r"|what can you do\b.*|tell me about yourself.*|nice to meet you.*|how do you (?:do|work|feel)\b.*)",
    re.IGNORECASE | re.DOTALL,
)  # fmt: skip
_MADE_UP = re.compile(
    r"\b(?:write|compose|tell|make up|sing|create|generate|give|say)\b(?: me| us)?(?: (?:a|an|some|another|the|one))?(?: "
    r"[\w-]+){0,2}? "
    r"(?:poem|story|stories|haiku|joke|song|limerick|essay|riddle|sonnet|tale|slogan|lyrics|rap)\b",
    re.IGNORECASE,
)  # fmt: skip
_EXPLAINED = re.compile(
    r"\s*(?:how (?:do|can|would|should|could|does)\b(?! (?:you|i|one) (?:say|spell|pronounce))|how to\b|explain\b|"
    r"define\b|why\b|what (?:does|do) .{1,40} mean\b"
    r"|what(?:'s| is) the difference between\b|what(?:'s| is| are) an? [a-z -]{1,40}\??$)",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"^\s*(?:if|when|once|unless|in case)\b[^,]*,", re.IGNORECASE)
_CONTENT = re.compile(
    r"\s*(?:\b(?:saying|that says|about|regarding|with the (?:subject|body|content|text)|telling \w+)\b|: ).*",
    re.DOTALL | re.IGNORECASE,
)
_NO_TOOLS = re.compile(
    r"\b(?:without (?:using |calling )?|do(?:n't| not) (?:use|call|invoke) |no )(?:any |the |a |your )?(?:tools?|"
    r"functions?)\b",
    re.IGNORECASE,
)
_LEADS_IN = re.compile(r"\s*(?:in|on|at|from|for|with|using|if|when|once|as|given|within)\b[^,]*(?=,|$)", re.IGNORECASE)
_QUESTION = re.compile(
    r"\s*(?:who|whom|whose|what|when|where|which|how|is|are|was|were|did|does|do|has|have|will|should)\b.*|.*\?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_BACKWARDS = re.compile(
    r"\b(?:it|them|that|this|these|those|(?:the|its|your) (?:results?|outputs?|answers?|summary|findings|response|report|"
    r"translation))\b", re.IGNORECASE
)  # fmt: skip
_BUILDS = re.compile(
    r"\b(?:send|email|mail|message|post|save|write|store|translate|summari[sz]e|convert|share|forward|use|put|text|book)\b",
    re.IGNORECASE,
)


@dataclass(slots=True, frozen=True)
class Clause:
    """said: its words. topic: those of them that tell what is wanted, not what a message or poem is to be about.

    stage: clauses of a later stage wait for the results of those before.
    """

    said: str
    topic: str
    stage: int
    acts: frozenset[Act]
    question: bool
    explains: bool  # it wants an explanation, not that something be done
    backwards: bool  # it speaks of what came before: "send it to Bob"


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """A long text's beginning and end: a request stands there, with a document between."""
    half = most // 2
    text = text if len(text) <= most else f"{text[:half]}\n{text[-half:]}"
    return _ENDLESS.sub(r"\1", text)


def clauses(text: str) -> list[Clause]:
    """What the text asks for, in order; small talk is left out, and all of it where it says that no tools are to be used."""
    if _NO_TOOLS.search(text):
        return []
    masked = _QUOTED.sub(lambda match: "\x00" * len(match[0]), text)
    found: list[Clause] = []
    stage = 0
    at = 0
    for end in [*(match.span() for match in _SENTENCE_ENDS.finditer(masked)), (len(text), len(text))]:
        for later, start, stop in _split(masked, at, end[0]):
            said = text[start:stop].strip(" ,;")
            plain = said[_POLITE.match(said).end() :]  # type: ignore[union-attr]  # it matches nothing at least
            if not plain or _SMALL_TALK.fullmatch(said):
                continue
            backwards = bool(found) and bool(_BACKWARDS.search(plain) and _BUILDS.search(plain))
            stage += bool(found) and (later or backwards)
            found.append(_clause(plain, stage, backwards))
        at = end[1]
    half = _MOST_CLAUSES // 2
    return found if len(found) <= _MOST_CLAUSES else [*found[:half], *found[-half:]]


def _split(masked: str, start: int, end: int) -> list[tuple[bool, int, int]]:
    """The clauses of a sentence: (whether it comes after the one before, where it begins, where it ends)."""
    cuts = [(match.start(), match.end(), True) for match in _THEN.finditer(masked, start, end)]
    for match in _AND.finditer(masked, start, end):
        if not any(begin <= match.start() < stop or begin < match.end() <= stop for begin, stop, _ in cuts):
            cuts.append((match.start(), match.end(), False))
    parts = []
    later = False
    for begin, stop, then in sorted(cuts):
        parts.append((later, start, begin))
        start, later = stop, then
    parts.append((later, start, end))
    if len(parts) > 1 and _LEADS_IN.match(masked, parts[0][1], parts[0][2]):
        parts[:2] = [(False, parts[0][1], parts[1][2])]
    return parts


def _clause(said: str, stage: int, backwards: bool) -> Clause:
    words = re.findall(r"[a-z]+", said.lower())
    question = _QUESTION.fullmatch(said) is not None
    acts: set[Act] = {"get"} if question else set()
    if not question or words[:1] == ["show"]:
        acts |= next((VERBS[word] for word in words if word in VERBS), frozenset())
    topic = _CONDITION.sub("", _QUOTED.sub(" ", said))
    if (made_up := _MADE_UP.search(topic)) is not None:
        topic = topic[: made_up.end()]
    elif acts & {"send", "create"} and "get" not in acts and not question:
        topic = _CONTENT.sub(" ", topic)
    return Clause(said, topic, stage, frozenset(acts), question, _EXPLAINED.match(said) is not None, backwards)

"""The length of a reply when the model stops by itself, by the rules of docs/replies.md."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist

from llmirage_server.replies.reply import ReplyRequest
from llmirage_server.replies.tool_request import MOST_CHARACTERS, request_text
from llmirage_shared.wire.chat import last_user_text

# A chat reply of about 215 tokens on average, as in LMSYS-Chat-1M (Zheng et al. 2023, table 1: 214.5); the spread is
# chosen so that one reply in ten is longer than about 430 tokens.
DEFAULT_MEDIAN_TOKENS = 156.0
DEFAULT_SIGMA = 0.8
_THOUGHT_SIGMA = 0.5
_FEW = 0.2  # of the usual length: the answer to a few words
_FEW_WORDS, _FEW_BYTES = 12, 80
_TITLE_TOKENS = 12
_MOST_STATED = 4096  # tokens: no model keeps to more
_CHARACTERS_PER_TOKEN = 5  # of the prose that replies are made of
_SEEN = 400  # characters at each end of a text in which a length is looked for

_STANDARD_NORMAL = NormalDist()

# Requests of a few words whose answers are long all the same.
_AT_LENGTH = re.compile(
    r"\b(?:analy[sz]e|article|code|compare|create|describe|detail\w*|difference|discuss|draft|elaborate|essay|explain|"
    r"generate|guide|how|implement|list|long|outline|poem|program|review|story|summari[sz]e|tell|tutorial|why|write)\b",
    re.IGNORECASE,
)
_TITLE_WORDS = ("title", "headline", "subject line", "commit message", "slug", "label")
_TITLE = re.compile(
    r"\b(?:title generator|(?:generate|create|write|give|make|suggest|output|produce|provide|come up with)\b[^.\n]{0,60}"
    rf"\b(?:{'|'.join(_TITLE_WORDS)}))\b"
)
_NUMBERS = {
    "a": 1, "an": 1, "single": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10,
}  # fmt: skip
_UNITS = {"word": 1.4, "token": 1.0, "character": 0.25, "char": 0.25, "line": 15.0, "sentence": 20.0, "paragraph": 80.0}
_UNIT = re.compile(rf"[ -](?P<unit>{'|'.join(_UNITS)})s?\b")
_LIMITS = (
    " at most", " more than", " fewer than", " less than", " under", " below", " within", " up to", " max", " maximum",
    " maximum of", " limit to", " limited to", " ≤", " <", " <=",
)  # fmt: skip
_WISHES = (
    " in", " with", " exactly", " only", " just", " about", " around", " approximately", " roughly", " at least", " write",
)  # fmt: skip
_BEFORE = 60  # characters before a unit in which its count stands
_MOST_UNITS = 8  # that are looked at
_AFTER = re.compile(
    r"\s+(?:(?P<limit>or (?:less|fewer)|max(?:imum)?\b|at most)|only|long|answer|article|essay|paragraph|reply|response|"
    r"story|summary)"
)
_GOES_ON = re.compile(r"\W*(?:(?:please|ok|okay|yes|now)\W+)*(?:continue|go on|keep going|resume|carry on)\b", re.IGNORECASE)
_RESUMES = re.compile(r"\b(?:continue|resume|go on|pick up)\b")
_WAS_CUT = ("left off", "cut off", "the cut", "truncated", "token limit", "length limit")


@dataclass(slots=True, frozen=True)
class ReplyLengths:
    """Lognormal lengths: the logarithm of the length is normal with mean log(median_tokens) and deviation sigma.

    Raises ValueError unless median_tokens is positive and sigma is not negative.
    """

    median_tokens: float = DEFAULT_MEDIAN_TOKENS
    sigma: float = DEFAULT_SIGMA

    def __post_init__(self) -> None:
        if not (self.median_tokens > 0 and math.isfinite(self.median_tokens)):
            raise ValueError(f"median reply length must be a positive number of tokens, not {self.median_tokens}")
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            raise ValueError(f"sigma of the reply length must be 0 or more, not {self.sigma}")

    def tokens(self, bits: int) -> int:
        """Return the length that 64 random bits stand for, at least 1."""
        return max(1, round(self.median_tokens * math.exp(self.sigma * _deviations(bits))))

    def tokens_for(self, request: ReplyRequest, bits: int) -> int:
        """Return the length of the text that answers a request and ends by itself; 0 if all of it has been said."""
        text, said_characters = _asked(request)
        drawn = self.tokens(bits) * request.length_factor
        stated = _stated(text, _system(request))
        if stated is None:
            drawn *= _FEW if _is_short(text) else 1
        else:
            tokens, is_limit = stated
            drawn = min(drawn, tokens) if is_limit else tokens
        return max(0, max(1, round(drawn)) - said_characters // _CHARACTERS_PER_TOKEN)


def thought_tokens(request: ReplyRequest, bits: int) -> int:
    """Return the length of the thoughts before an answer: those of the request at most, a fifth before a short answer."""
    text, _ = _asked(request)
    brief = _is_short(text) or _stated(text, _system(request)) is not None
    drawn = request.reasoning_tokens * math.exp(-_THOUGHT_SIGMA * abs(_deviations(bits)))
    return max(1, round(drawn * (_FEW if brief else 1)))


def _deviations(bits: int) -> float:
    uniform = ((bits & 0xFFFF_FFFF_FFFF_FFFF) + 0.5) / 2.0**64
    return _STANDARD_NORMAL.inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))


def _asked(request: ReplyRequest) -> tuple[str, int]:
    """Return the text that is answered, and how many characters of the answer have been said.

    A message that only asks to go on continues the answer to the one before it, and so does one that the assistant began.
    """
    text, said = request.last_user_text, 0
    for message in reversed(request.messages):
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            said += len(last_user_text((message,)))
        elif message.get("role") == "user":
            text = last_user_text((message,))
            if not _asks_to_go_on(text):
                break
        else:
            break
    return _outside_tags(text), said


def _asks_to_go_on(text: str) -> bool:
    if len(text) <= _FEW_BYTES:
        return _GOES_ON.match(text) is not None
    beginning = text[:_SEEN].lower()
    return any(words in beginning for words in _WAS_CUT) and _RESUMES.search(beginning) is not None


def _outside_tags(text: str) -> str:
    """Return what stands before and after the blocks in XML-like tags that harnesses add; without that, what they ask."""
    if "</" not in text or ">" not in text:
        return text
    outside = text[: text.index("<")] + text[text.rindex(">") + 1 :]
    return outside if outside.strip() else request_text(text) if len(text) <= MOST_CHARACTERS else text


def _is_short(text: str) -> bool:
    few = 0 < len(text) <= _FEW_BYTES and len(text.encode(errors="replace")) <= _FEW_BYTES
    return few and len(text.split()) <= _FEW_WORDS and _AT_LENGTH.search(text) is None


def _system(request: ReplyRequest) -> str:
    first = request.messages[0] if request.messages else {}
    return last_user_text((first,))[:_SEEN] if first.get("role") in ("system", "developer") else ""


def _stated(text: str, system: str) -> tuple[float, bool] | None:
    """Return the tokens that a text or the beginning of the instructions asks for, and if they are a limit; else None."""
    for said in (text[-_SEEN:], text[:_SEEN] if len(text) > _SEEN else "", system):
        said = said.lower()
        if any(word in said for word in _TITLE_WORDS) and _TITLE.search(said):
            return _TITLE_TOKENS, True
        for unit in islice(_UNIT.finditer(said), _MOST_UNITS) if any(word in said for word in _UNITS) else ():
            after = _AFTER.match(said, unit.end())
            found = _count_before(said[max(0, unit.start() - _BEFORE) : unit.start()], after is not None)
            if found is not None:
                number, is_limit = found
                tokens = min(number * _UNITS[unit["unit"]], _MOST_STATED)
                return tokens, is_limit or (after is not None and after["limit"] is not None)
    return None


def _count_before(before: str, is_meant: bool) -> tuple[int, bool] | None:
    """Return the count at the end of a text, and if the words before it make it a limit; None if they do not ask for it.

    is_meant: whether it is asked for whatever stands before. An adjective may follow it: "two short".
    """
    spaced = before.replace("-", " ").replace("–", " ").replace("≤", " ≤ ").replace("<=", " <= ")
    words = [word.strip("().:;~\"'") for word in spaced.split()]
    for end in (len(words), len(words) - 1):
        number = _number(words[end - 1]) if end > 0 else None
        if number is None:
            continue
        start = end - 1
        if start and words[start - 1] == "a":  # a single sentence
            start -= 1
        if start > 1 and words[start - 1] in ("to", "or") and _number(words[start - 2]) is not None:
            start -= 2
        elif start and _number(words[start - 1]) is not None:
            start -= 1
        phrase = " ".join(["", *words[:start]])
        is_limit = phrase.endswith(_LIMITS)
        return (number, is_limit) if is_limit or is_meant or phrase.endswith(_WISHES) else None
    return None


def _number(word: str) -> int | None:
    word = word.replace(",", "")
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 6 else _NUMBERS.get(word)

"""How long a reply is when the model stops by itself, by the rules of docs/replies.md."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

from llmirage_server.replies.reply import ReplyRequest
from llmirage_server.replies.tool_request import request_text
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
_TITLE = re.compile(
    r"\b(?:title generator|(?:generate|create|write|give|make|suggest|output|produce|provide|come up with)\b[^.\n]{0,60}"
    r"\b(?:title|headline|subject line|commit message|slug|label))\b",
    re.IGNORECASE,
)
_NUMBERS = {
    "a": 1, "a single": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10,
}  # fmt: skip
_UNITS = {"word": 1.4, "token": 1.0, "character": 0.25, "char": 0.25, "line": 15.0, "sentence": 20.0, "paragraph": 80.0}
_COUNT = rf"\d{{1,3}}(?:,\d{{3}})+|\d{{1,6}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))}"
_MOST = (
    r"at most|(?:no|not) more than|fewer than|less than|under|below|within|up to|max(?:imum)?(?: of)?|limit(?:ed)? to|≤|<=?"
)
_STATED = re.compile(
    rf"(?:(?P<most>{_MOST})|\b(?:in|with|exactly|only|just|about|around|approximately|roughly|at least))\s*"
    rf"(?:(?:\d+|{'|'.join(_NUMBERS)})\s*(?:[-–]|to|or)\s*)?(?P<count>{_COUNT})[\s-]+(?:\w+ )?"
    rf"(?P<unit>{'|'.join(_UNITS)})s?\b"
    rf"|\b(?P<written>{_COUNT})[\s-]+(?P<of>{'|'.join(_UNITS)})s?\s+"
    r"(?:(?P<after>or (?:less|fewer)|max(?:imum)?\b|at most)|only|long|answer|article|essay|paragraph|reply|response|story|"
    r"summary)",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r"\W*(?:(?:please|ok|okay|yes|now)\W+)*(?:continue|go on|keep going|resume|carry on)\b", re.IGNORECASE)
_RESUMES = re.compile(r"\b(?:continue|resume|go on|pick up)\b", re.IGNORECASE)
_WAS_CUT = re.compile(r"\b(?:left off|cut off|the cut|truncated|token limit|length limit)\b", re.IGNORECASE)


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
    return request_text(text), said


def _asks_to_go_on(text: str) -> bool:
    if len(text) <= _FEW_BYTES:
        return _GOES_ON.match(text) is not None
    beginning = text[:_SEEN]
    return _WAS_CUT.search(beginning) is not None and _RESUMES.search(beginning) is not None


def _is_short(text: str) -> bool:
    few = 0 < len(text.encode(errors="replace")) <= _FEW_BYTES and len(text.split()) <= _FEW_WORDS
    return few and _AT_LENGTH.search(text) is None


def _system(request: ReplyRequest) -> str:
    first = request.messages[0] if request.messages else {}
    return last_user_text((first,))[:_SEEN] if first.get("role") in ("system", "developer") else ""


def _stated(text: str, system: str) -> tuple[float, bool] | None:
    """Return the tokens that a text or the beginning of the instructions asks for, and if they are a limit; else None."""
    for said in (text[-_SEEN:], text[:_SEEN], system):
        if _TITLE.search(said):
            return _TITLE_TOKENS, True
        if found := _STATED.search(said):
            count = (found["count"] or found["written"]).lower().replace(",", "")
            number = _NUMBERS.get(count) or int(count)
            unit = (found["unit"] or found["of"]).lower()
            is_limit = found["most"] is not None or found["after"] is not None
            return min(number * _UNITS[unit], _MOST_STATED), is_limit
    return None

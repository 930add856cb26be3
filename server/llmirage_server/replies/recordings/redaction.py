"""Secrets that must not reach a recording: the keys that came with a request, and what looks like a key.

A key that is known (it stood in a header, a cookie or the URL, or it is the upstream's) is replaced wherever it stands, also
as JSON or a URL would write it, also spread over the events of a stream. Other keys are found by their form.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from llmirage_server.replies.recordings.recording import event_parts, json_style, write_json
from llmirage_shared.texts import without_surrogates

REDACTED = "REDACTED"
SHORTEST_KEY = 8  # characters; a shorter one would be found in innocent words ("test"): it is only left out as a header
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|passw|credential|signature|^sig$|^code$", re.IGNORECASE)
_NO_SECRET_NAME = frozenset(("idempotency-key",))
# Fields of bodies whose text is a key, whatever it looks like.
_FIELD = (
    r"[\w-]{0,40}(?:(?:api|access|secret|private)[-_]?key|passw(?:or)?d|secret|credentials?|authorization)"
    r"|(?:set[-_])?cookie|(?:access|refresh|auth|session|id|bearer|bot|github|gitlab|slack|hf|huggingface)[-_]?token"
)
_SECRET_FIELD = re.compile(_FIELD, re.IGNORECASE)
_PREFIXES = (
    *(
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "hf_",
        "gsk_",
        "r8_",
        "AIza",
        "xai-",
        "pplx-",
        "nvapi-",
    ),
    *("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-"),
)
# What must occur in a text (any of these), and a pattern; what is replaced is group 1, or the whole match. Clients choose
# the texts: no pattern may look further than a fixed number of characters from each place where it can begin.
_FORMS: Sequence[tuple[Sequence[str], re.Pattern[str]]] = [
    # OpenAI, Anthropic, OpenRouter, DeepSeek
    (("sk-",), re.compile(r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{8,}")),
    (("earer",), re.compile(r"\b[Bb]earer\s+((?=[A-Za-z._~+/=-]*\d)[A-Za-z0-9._~+/=-]{8,})")),
    (("asic",), re.compile(r"\b[Bb]asic\s+((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{8,}={0,2})")),
    # GitHub, GitLab, Hugging Face, Groq, Replicate, Slack, xAI, Perplexity, Nvidia, Google
    (_PREFIXES, re.compile(rf"\b(?:{'|'.join(_PREFIXES)})[A-Za-z0-9_-]{{16,}}")),
    (("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    # A JSON web token
    (("eyJ",), re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")),
    (
        ("PRIVATE KEY",),
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
    # In JSON that is the text of something
    (('"',), re.compile(rf'(?i)"(?:{_FIELD})\\{{0,7}}"\s*:\s*\\{{0,7}}"([^"\\]+)')),
    # As files of settings and shells have them: OPENAI_API_KEY=..., postgres://user:...@host
    (
        ("KEY", "SECRET", "PASSW", "TOKEN"),
        re.compile(
            r"\b[A-Z][A-Z0-9_]{0,60}(?:KEY|SECRET|PASSW(?:OR)?D|TOKEN)\s?[=:]\s?[\"']?"
            r"((?=[A-Za-z+/_=!@#$%^&*~-]{0,64}\d)[A-Za-z0-9+/_=!@#$%^&*~-]{8,})"
        ),
    ),
    (("://",), re.compile(r"://[^/\s:@\"'<>]{1,64}:([^/\s@\"'<>]{1,128})@")),
    (("?", "&"), re.compile(r"(?i)[?&](?:api[-_]?key|key|access_token|token|sig|signature)=([^&\s\"'<>]+)")),
]
# The fields of stream events that say a text piece by piece.
_PIECES = frozenset(
    (
        "content",
        "text",
        "delta",
        "arguments",
        "partial_json",
        "thinking",
        "reasoning",
        "reasoning_content",
        "refusal",
        "input",
    )
)


class Redactor:
    """Replaces secrets by REDACTED."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """secrets: those that are known; shorter ones than SHORTEST_KEY are ignored."""
        known = {secret.strip() for secret in secrets}
        forms = {form for secret in known if len(secret) >= SHORTEST_KEY for form in _written(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._beginnings = {form[:end] for form in forms for end in range(_least_of_cut(form), len(form))}
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def text(self, text: str) -> str:
        return _replaced(text, self._spans(text))

    def value(self, value: Any) -> Any:
        """Return a JSON value; numbers may be keys, too. Lone surrogates, which no file can hold, become U+FFFD."""
        return self._redacted(value, without_surrogates)

    def _redacted(self, value: Any, form: Callable[[str], str] = str) -> Any:
        """form: changes each text before it is searched."""
        if isinstance(value, str):
            return self.text(form(value))
        if isinstance(value, list):
            return [self._redacted(item, form) for item in value]
        if isinstance(value, dict):
            return {self._redacted(name, form): self._field(name, item, form) for name, item in value.items()}
        if isinstance(value, int | float) and self._known is not None and self._known.search(repr(value)):
            return REDACTED
        return value

    def body(self, data: bytes) -> bytes:
        """Return the bytes of a body: equal where nothing was found in them."""
        if (found := json_style(data)) is not None:
            value, style, newline = found
            redacted = self._redacted(value)
            return data if redacted == value else write_json(redacted, style, newline)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self._raw(data)
        redacted = self._redacted(value)
        return data if redacted == value else write_json(redacted, "compact ascii")

    def events(self, events: Sequence[bytes]) -> list[bytes]:
        """Return the events of a stream. A key is found, too, where its characters come in several events."""
        parsed = [_JsonEvent.parse(event) for event in events]
        for place in _said_in_pieces([event.value for event in parsed if event is not None]).values():
            spans = self._spans("".join([owner[name] for owner, name in place]))
            if not spans:
                continue
            start = 0
            for owner, name in place:
                piece = owner[name]
                owner[name] = _replaced(piece, _clipped(spans, start, start + len(piece)))
                start += len(piece)
        return [
            self._raw(event) if found is None else found.written(self._redacted(found.value), event)
            for event, found in zip(events, parsed, strict=True)
        ]

    def path(self, path: str) -> str:
        """Return a path with its query."""
        path, mark, query = path.partition("?")
        pairs = [pair.partition("=") for pair in query.split("&")]
        shown = [
            f"{name}={REDACTED}" if equals and _is_secret(name) else name + equals + value for name, equals, value in pairs
        ]
        return self.text(path + mark + "&".join(shown))

    def _raw(self, data: bytes) -> bytes:
        """Bytes that are not JSON. Those that are not UTF-8 are read as if each were a character."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self.text(data.decode("latin-1")).encode("latin-1", "replace")
        redacted = self.text(text)
        return data if redacted == text else redacted.encode()

    def _field(self, name: str, value: Any, form: Callable[[str], str]) -> Any:
        if isinstance(value, str) and value and _SECRET_FIELD.fullmatch(name):
            return REDACTED
        return self._redacted(value, form)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of secrets, in order, not overlapping."""
        found = [] if self._known is None else [match.span() for match in self._known.finditer(text)]
        for hints, pattern in _FORMS:
            if any(hint in text for hint in hints):
                found += [match.span(pattern.groups) for match in pattern.finditer(text)]
        if cut := self._cut_key(text):
            found.append((len(text) - cut, len(text)))
        merged: list[tuple[int, int]] = []
        for start, end in sorted(span for span in found if text[span[0] : span[1]] != REDACTED):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _cut_key(self, text: str) -> int:
        """Return the number of characters at the end of a text that begin a known key: a stream may break off within one."""
        for length in range(min(self._longest_beginning, len(text)), SHORTEST_KEY - 1, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0


def _least_of_cut(key: str) -> int:
    """Return the characters of a key's beginning from which on it is replaced: `sk-proj-` alone is none."""
    return max(SHORTEST_KEY, len(key) // 2)


def secrets_of(headers: Iterable[tuple[str, str]], path: str) -> Iterator[str]:
    """Yield the keys that a request brings: in headers, in cookies, and in the query of its path."""
    for name, value in headers:
        if not _is_secret(name):
            continue
        yield value
        scheme, _, rest = value.strip().partition(" ")
        if rest:
            yield rest
        if scheme.lower() == "basic":
            try:
                user_and_password = base64.b64decode(rest.strip()).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue
            yield user_and_password
            yield user_and_password.partition(":")[2]
        if "cookie" in name.lower():
            for pair in value.split(";"):
                yield pair.partition("=")[2].strip().strip('"')
    for pair in path.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if _is_secret(name):
            yield value
            yield unquote_plus(value)


def _is_secret(name: str) -> bool:
    return name.lower() not in _NO_SECRET_NAME and _SECRET_NAME.search(name) is not None


def _written(secret: str) -> Iterator[str]:
    """Yield a secret as texts, JSON, URLs and base64 have it. A colon may precede the encoded part (a password's user)."""
    yield secret
    for ascii_only in (False, True):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield from (escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1])
    encoded = secret.encode("utf-8", "replace")
    yield from (quote(encoded), quote(encoded, safe=""), quote_plus(encoded), base64.b64encode(encoded).decode())


def _replaced(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text with REDACTED for each span; a span that began before the text (at -1) leaves nothing."""
    parts, last = [], 0
    for start, end in spans:
        parts.append(text[last : max(start, 0)])
        if start >= 0:
            parts.append(REDACTED)
        last = end
    return "".join([*parts, text[last:]]) if parts else text


def _clipped(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of spans within [start, end), from its start; -1 as a start: it began before."""
    inside = [(a, b) for a, b in spans if a < end and b > start]
    return [(a - start if a >= start else -1, min(b, end) - start) for a, b in inside]


class _JsonEvent(NamedTuple):
    """An event whose data is one line of JSON."""

    before: bytes
    data: bytes
    after: bytes
    value: Any

    @classmethod
    def parse(cls, event: bytes) -> _JsonEvent | None:
        parts = event_parts(event)
        try:
            value = json.loads(parts[1]) if parts is not None else None
        except (ValueError, RecursionError):
            return None
        return cls(*parts, value) if parts is not None and isinstance(value, dict) else None

    def written(self, redacted: Any, event: bytes) -> bytes:
        """Return the event with this value: equal to `event` if nothing was redacted."""
        if redacted == json.loads(self.data):
            return event
        found = json_style(self.data)
        return self.before + write_json(redacted, "compact ascii" if found is None else found[1]) + self.after


def _said_in_pieces(values: Sequence[Any]) -> dict[Any, list[tuple[dict[str, Any], str]]]:
    """Return the texts that events say piece by piece: for each the pieces in order, as (object, name of its field)."""
    found: dict[Any, list[tuple[dict[str, Any], str]]] = {}

    def walk(value: Any, place: tuple[Any, ...]) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item, place)
        elif isinstance(value, dict):
            number = tuple(value[name] for name in _NUMBERS if isinstance(value.get(name), int | str))
            for name, item in value.items():
                if name in _PIECES and isinstance(item, str):
                    found.setdefault((*place, number, name), []).append((value, name))
                else:
                    walk(item, (*place, number, name))

    for value in values:
        walk(value, (value.get("type"),))
    return found


_NUMBERS = ("index", "output_index", "content_index", "summary_index", "item_id")

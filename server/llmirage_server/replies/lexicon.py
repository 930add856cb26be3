"""Words: those that say nothing of what a tool does, and what people say when they want what a tool's name speaks of.

The lists are in data/words.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from llmirage_server.replies.data_file import read_data

_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_DATA = read_data("words.yaml")
EMPTY = word_set(_DATA["empty"])
VERBS_OF_ACTS: Mapping[Any, frozenset[str]] = {act: word_set(verbs) for act, verbs in _DATA["verbs"].items()}


def stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    if word.endswith("s") and len(word) == 4 and not word.endswith("ss"):
        return word[:-1]
    return word


def split_words(text: str) -> list[str]:
    """The words of a text or a name, in lower case: getWeather, get-weather, mcp__get_weather."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]


def meaning(words: Iterable[str]) -> set[str]:
    """The stems of those words that carry meaning."""
    return {stem(word) for word in words if word not in EMPTY and len(word) > 1}


def said_as(stems: Iterable[str]) -> set[str]:
    """The stems, and all that people may say for them."""
    return {said for word in stems for said in (word, *_STEMS.get(word, ()))}


_STEMS = {stem(key): {stem(word) for word in words.split()} for key, words in _DATA["said_as"].items()}
_LANGUAGES = {name: (one["letters"], word_set(one["words"])) for name, one in _DATA["languages"].items()}
_SCRIPTS = (("japanese", re.compile(r"[぀-ヿ]")), ("korean", re.compile(r"[가-힣]")), ("chinese", re.compile(r"[一-鿿]")),
            ("russian", re.compile(r"[а-яА-Я]{3}")), ("arabic", re.compile(r"[؀-ۿ]{2}")))  # fmt: skip


def language_of(text: str) -> str | None:
    """The language a text is in, if it is one of a few and not English."""
    for name, script in _SCRIPTS:
        if script.search(text):
            return name
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {
        name: 2 * any(letter in text for letter in letters) + sum([word in known for word in words])
        for name, (letters, known) in _LANGUAGES.items()
    }
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= min(2, max(1, len(words))) else None

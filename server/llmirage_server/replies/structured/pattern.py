"""Readable texts that regular expressions match."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence

from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import Language, PatternError, TextDemand, TextState, language

_MORE = 6  # characters beyond the shortest text, and as many again as it has
_MOST_MORE = 12
_MOST_KEPT, _MOST_KEPT_LENGTHS = 8, 200  # searches of a language, and lengths of each
_TRIES = 10  # at random, to find a text that was not there before

_Ways = list[dict[TextState, list[tuple[int, TextState]]]]  # by length: the ways on that lead to a text


def matching(pattern: str, rng: random.Random, min_length: int = 0, max_length: int | None = None) -> str:
    """Return a text that `pattern` matches (anywhere in it, as JSON Schema asks), in characters within the lengths.

    Raises PatternError when there is none, BudgetError when finding one is too much work.
    """
    return text_of([TextDemand(pattern)], rng, min_length, max_length)


def whole_match(pattern: str, seed: int) -> str:
    """Return a text that is a match from end to end, as guided decoding by a regex asks. Raises as `matching`."""
    return text_of([TextDemand(pattern, whole=True)], random.Random(seed))


def text_of(
    parts: Sequence[TextDemand],
    rng: random.Random,
    min_length: int = 0,
    max_length: int | None = None,
    besides: Sequence[str] = (),
) -> str:
    """Return a text that meets all demands, in characters within the lengths, other than those of `besides`.

    Raises as `matching`. Patterns match it from end to end, if such a text exists: what stands around a match says nothing.
    """
    exact = tuple([part._replace(whole=True) if not part.negative else part for part in parts])
    for demands in dict.fromkeys([exact, tuple(parts)]):
        texts = language(demands)
        key = (min_length, max_length, len(besides))
        search = texts.searches.get(key)
        if search is None:
            search = _Search(texts, *key)
            if search.lengths <= _MOST_KEPT_LENGTHS and not besides:
                if len(texts.searches) >= _MOST_KEPT:
                    texts.searches.clear()
                texts.searches[key] = search
        found: str | None = search.text(texts, rng, besides)
        if found is not None:
            return found
    listed = " and ".join([f"{'not ' if part.negative else ''}{part.pattern!r}" for part in parts])
    bounds = f"{min_length} {f'to {max_length}' if max_length is not None else 'or more'} characters"
    other = ", other than those that are there," if besides else ""
    raise PatternError(f"no text of {bounds}{other} matches {listed}")


class _Search:
    """The texts of a language by their lengths, up to some characters beyond the shortest that is long enough.

    It has no reference to its language, which keeps it: both are freed with their thread, without the collector of cycles.
    """

    def __init__(self, texts: Language, least: int, most: int | None, more: int) -> None:
        spend_characters(max(least, texts.shortest))
        layers = [dict.fromkeys(texts.starts())]  # the states that texts of a length may be in
        known = set(layers[0])
        self._lengths: list[int] = []
        while layers[-1] and (most is None or len(layers) - 1 <= most):
            length = len(layers) - 1
            spend()
            if length >= least and any(texts.accepts(state) for state in layers[-1]):
                self._lengths.append(length)
                if len(self._lengths) == 1:
                    further = length + _MORE + min(length, _MOST_MORE) + more
                    most = further if most is None else min(most, further)
            elif not self._lengths and length > least + len(known):
                break  # a longer text would repeat a state without need
            following: dict[TextState, None] = {}
            for state in layers[-1]:
                ways = texts.ways(state)
                spend(1 + len(ways) // 8)
                following.update(dict.fromkeys([after for _, after in ways]))
            known.update(following)
            layers.append(following)
        self._layers = layers
        self._ways_to_lengths: dict[int, _Ways] = {}

    @property
    def lengths(self) -> int:
        """The number of lengths that it has looked at."""
        return len(self._layers)

    def text(self, texts: Language, rng: random.Random, besides: Container[str]) -> str | None:
        """Return one of the texts, None if there is none."""
        if not self._lengths:
            return None
        for _ in range(_TRIES if besides else 1):
            length = rng.choice(self._lengths)
            text = self._any(texts, self._ways_to(texts, length), length, rng)
            if text not in besides:
                return text
        for length in self._lengths:
            for text in self._every(texts, self._ways_to(texts, length), length):
                spend()
                if text not in besides:
                    return text
        return None

    def _ways_to(self, texts: Language, length: int) -> _Ways:
        """Return the ways through the layers that end in a text of the length."""
        if length in self._ways_to_lengths:
            return self._ways_to_lengths[length]
        alive: dict[TextState, list[tuple[int, TextState]]] = {
            state: [] for state in self._layers[length] if texts.accepts(state)
        }
        found = [alive]
        for layer in reversed(self._layers[:length]):
            spend(1 + len(layer) // 2)
            before = {}
            for state in layer:
                if ways := [way for way in texts.ways(state) if way[1] in alive]:
                    before[state] = ways
            found.append(alive := before)
        found.reverse()
        self._ways_to_lengths[length] = found
        return found

    def _any(self, texts: Language, ways: _Ways, length: int, rng: random.Random) -> str:
        state = rng.choice(list(ways[0]))
        written = []
        for place in range(length):
            classes, state = rng.choice(ways[place][state])
            written.append(rng.choice(texts.characters(classes)))
        return "".join(written)

    def _every(self, texts: Language, ways: _Ways, length: int) -> Iterator[str]:
        """Yield all texts of the length, some more than once."""
        pending = [("", state) for state in reversed(ways[0])]
        while pending:
            spend()
            text, state = pending.pop()
            if len(text) == length:
                yield text
                continue
            for classes, following in reversed(ways[len(text)][state]):
                pending += [(text + character, following) for character in reversed(texts.characters(classes, True))]

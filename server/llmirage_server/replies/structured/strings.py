"""Texts that obey a schema's or a request's pattern, format and lengths."""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Callable, Container, Iterator, Sequence

from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import Language, TextDemand, TextState, language
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_shared.texts import short_cache

_MORE = 6  # characters beyond the shortest text, and as many again as it has
_MOST_MORE = 12
_MOST_KEPT, _MOST_KEPT_LENGTHS = 8, 200  # searches of a language, and lengths of each
_TRIES = 10  # at random, to find a text that was not there before

_Ways = list[dict[TextState, list[tuple[int, TextState]]]]  # by length: the ways on that lead to a text


def whole_match(pattern: str, seed: int) -> str:
    """Return a text that is a match from end to end, as guided decoding by a regex asks. Raises as `text_of`."""
    return text_of([TextDemand(pattern, whole=True)], random.Random(seed))


def text_of(
    parts: Sequence[TextDemand],
    rng: random.Random,
    min_length: int = 0,
    max_length: int | None = None,
    besides: Sequence[str] = (),
) -> str:
    """Return a text that meets all demands, in characters within the lengths, other than those of `besides`.

    Patterns match it from end to end, if such a text exists: what stands around a match says nothing. Raises PatternError
    when there is none, BudgetError when finding one is too much work.
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


_GIVEN = ("Ada", "Grace", "Alan", "Mary", "Linus", "Rosa", "Omar", "Mei", "Ines", "Jonas")
_FAMILY = ("Lopez", "Meyer", "Okafor", "Tanaka", "Novak", "Silva", "Kaur", "Dubois", "Larsen", "Moreau")
_CITIES = ("Paris", "Berlin", "Tokyo", "Nairobi", "Lisbon", "Toronto", "Oslo", "Lima", "Seoul", "Madrid")
_COUNTRIES = ("France", "Germany", "Japan", "Kenya", "Portugal", "Canada", "Norway", "Peru", "Spain", "Italy")
_STREETS = ("Main Street", "Station Road", "Park Avenue", "Mill Lane", "High Street", "River Walk")
_COLOURS = ("blue", "green", "red", "orange", "violet", "grey")
_WORDS = (
    "amber", "harbor", "meadow", "signal", "garden", "lantern", "bridge", "summit", "canvas", "orchard", "pilot", "river",
)  # fmt: skip
_SENTENCES = (
    "The results look consistent with what was expected.",
    "This step follows from the one before it.",
    "A short check of the figures confirms the answer.",
    "The main point is simple once the parts are named.",
    "Most of the work is done by the first two terms.",
    "It is worth keeping the details in one place.",
)
_TITLES = ("A quiet harbor", "Notes on the bridge", "The green lantern", "Signals and gardens", "Summit in the morning")


def _person(rng: random.Random) -> str:
    return f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(2020, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"


def _email(rng: random.Random) -> str:
    return f"{rng.choice(_GIVEN).lower()}.{rng.choice(_FAMILY).lower()}@example.com"


def _words(rng: random.Random, n: int, joint: str = " ") -> str:
    return joint.join(rng.sample(_WORDS, n))


Maker = Callable[[random.Random], str]

FORMATS: dict[str, Maker] = {
    "date": _date,
    "date-time": lambda rng: f"{_date(rng)}T{_time(rng)}Z",
    "time": lambda rng: f"{_time(rng)}Z",
    "duration": lambda rng: f"PT{rng.randint(1, 90)}M",
    "email": _email,
    "idn-email": _email,
    "hostname": lambda rng: f"{rng.choice(_WORDS)}.example.com",
    "idn-hostname": lambda rng: f"{rng.choice(_WORDS)}.example.com",
    "ipv4": lambda rng: f"192.0.2.{rng.randint(1, 254)}",
    "ipv6": lambda rng: f"2001:db8::{rng.randint(1, 0xFFFF):x}",
    "uri": lambda rng: f"https://example.com/{_words(rng, 2, '/')}",
    "url": lambda rng: f"https://example.com/{_words(rng, 2, '/')}",
    "iri": lambda rng: f"https://example.com/{_words(rng, 2, '/')}",
    "uri-reference": lambda rng: f"/{_words(rng, 2, '/')}",
    "iri-reference": lambda rng: f"/{_words(rng, 2, '/')}",
    "uri-template": lambda rng: f"https://example.com/{rng.choice(_WORDS)}/{{id}}",
    "uuid": lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    "json-pointer": lambda rng: f"/{_words(rng, 2, '/')}",
    "relative-json-pointer": lambda rng: f"0/{rng.choice(_WORDS)}",
    "regex": lambda rng: f"^{rng.choice(_WORDS)}$",
    "byte": lambda rng: base64.b64encode(rng.choice(_WORDS).encode()).decode(),
    "base64": lambda rng: base64.b64encode(rng.choice(_WORDS).encode()).decode(),
    "binary": lambda rng: rng.choice(_WORDS),
    "password": lambda rng: _words(rng, 3, "-"),
}

# The first entry one of whose words is a word of the property's name decides.
_BY_NAME: tuple[tuple[frozenset[str], Maker], ...] = tuple(
    (frozenset(words.split()), maker)
    for words, maker in (
        ("email mail", _email),
        ("url uri link href website homepage", FORMATS["uri"]),
        ("uuid guid", FORMATS["uuid"]),
        ("datetime timestamp", FORMATS["date-time"]),
        ("date day birthday deadline due", _date),
        ("timezone tz", lambda rng: rng.choice(("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"))),
        ("symbol ticker", lambda rng: rng.choice(("AAPL", "MSFT", "NVDA", "AMZN"))),
        ("time hour", lambda rng: _time(rng)[:5]),
        ("phone telephone mobile", lambda rng: f"+1 555 01{rng.randint(0, 99):02}"),
        ("city town capital location place destination origin departure arrival", lambda rng: rng.choice(_CITIES)),
        ("country nation", lambda rng: rng.choice(_COUNTRIES)),
        ("street address", lambda rng: f"{rng.randint(1, 99)} {rng.choice(_STREETS)}"),
        ("zip postcode postal", lambda rng: f"{rng.randint(10000, 99999)}"),
        ("currency", lambda rng: rng.choice(("EUR", "USD", "JPY"))),
        ("language lang locale", lambda rng: rng.choice(("en", "fr", "de", "es"))),
        ("unit units", lambda rng: rng.choice(("celsius", "metric", "km"))),
        ("color colour", lambda rng: rng.choice(_COLOURS)),
        ("code sku", lambda rng: f"{rng.choice('ABCDEFGH')}{rng.randint(100, 999)}"),
        ("id identifier key", lambda rng: f"{rng.choice(_WORDS)}-{rng.randint(100, 999)}"),
        ("path file filename directory folder", lambda rng: f"{_words(rng, 2, '/')}.txt"),
        ("title subject headline heading", lambda rng: rng.choice(_TITLES)),
        ("author person user username customer owner assignee recipient sender participant", _person),
        ("firstname given first", lambda rng: rng.choice(_GIVEN)),
        ("lastname surname family last", lambda rng: rng.choice(_FAMILY)),
        ("name fullname", _person),
        ("query search keyword keywords topic", lambda rng: _words(rng, 2)),
        ("expression formula equation", lambda rng: f"{rng.randint(2, 9)} * x = {rng.randint(10, 99)}"),
        ("sql", lambda rng: f"SELECT * FROM {rng.choice(_WORDS)}"),
        ("command cmd", lambda rng: f"ls {rng.choice(_WORDS)}"),
        ("tag tags label category kind type status state genre", lambda rng: rng.choice(_WORDS)),
        (
            "description summary text content body message explanation reason reasoning answer output thought comment note "
            "response analysis details rationale instruction input",
            lambda rng: rng.choice(_SENTENCES),
        ),
    )
)


def by_name(name: str, rng: random.Random) -> str:
    """Return a string that a property of this name might hold."""
    return _maker(name)(rng)


@short_cache(1024)
def _maker(name: str) -> Maker:
    words = _name_words(name)
    return next((maker for known, maker in _BY_NAME if known & words), lambda rng: _words(rng, 2))


def fitted(text: str, min_length: int, max_length: int | None, rng: random.Random) -> str:
    """Return the text, lengthened by whole words or cut, so that its characters are within the bounds."""
    spend_characters(min_length)
    length, parts = len(text), [text]
    while length < min_length:
        parts.append(rng.choice(_WORDS))
        length += 1 + len(parts[-1])
    text = " ".join(parts)
    if max_length is not None and len(text) > max_length:
        cut = text[:max_length].rstrip()
        text = cut if len(cut) >= min_length else text[:max_length]
    return text


def _name_words(name: str) -> set[str]:
    """first_name, firstName and first-name -> {first, name}."""
    spaced = "".join(f" {c.lower()}" if c.isupper() else c if c.isalnum() else " " for c in name)
    return set(spaced.split()) | {name.lower()}

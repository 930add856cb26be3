"""What a setting is: a field of a configuration class that knows its own help, limits and other names."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class ConfigError(ValueError):
    """One or more settings that cannot be used; `problems` has one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What the help text, the documentation and the checks say of one setting."""

    group: str  # its heading in the help text
    help: str
    metavar: str | None = None
    aliases: tuple[str, ...] = ()  # shorter names, and what other engines call it
    unset: str = ""  # what happens without it, where the default is None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None  # what else can be wrong with a value: the end of a sentence

    def problems(self, name: str, value: Any) -> Iterable[str]:
        """One sentence for each limit that a value breaks; None is within all of them."""
        if value is None:
            return
        if self.check is not None and (problem := self.check(value)):
            yield f"{name} {problem}"
        if self.choices and value not in self.choices:
            yield f"{name} must be one of {', '.join(self.choices)}; not {value!r}{did_you_mean(value, self.choices)}"
        if not self._range() or isinstance(value, bool) or not isinstance(value, int | float):
            return
        within = math.isfinite(value)
        within &= self.least is None or value >= self.least
        within &= self.above is None or value > self.above
        within &= self.most is None or value <= self.most
        if not within:
            yield f"{name} must be {self._range()}, not {value:{'g' if isinstance(value, float) else 'd'}}"

    def _range(self) -> str:
        limits = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{words} {limit:,.10g}" for words, limit in limits if limit is not None)


def setting(default: Any, group: str, help: str, **about: Any) -> Any:
    """A dataclass field with its `About`."""
    return dataclasses.field(default=default, metadata={"about": About(group=group, help=help, **about)})


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """The end of an error message: the nearest of the choices, if one is near."""
    near = difflib.get_close_matches(str(word), list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""

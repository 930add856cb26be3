"""Every parameter of a synthetic workload: its dotted name, kind and meaning, and how values of several sources merge.

A later source wins, value by value: `--set turns.mean=12` keeps the other parameters of the preset's distribution of turns.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llmirage_client.workload.checking import MOST_TOKENS
from llmirage_client.workload.distributions import (
    Distribution,
    DistributionError,
    overridden,
    parameters_of,
    read_distribution,
)
from llmirage_client.workload.rates import HOUR_S, SHAPES, RateSeries, Spike, read_rate_series, shape_name
from llmirage_client.workload.session import Problem

_MOST_TURNS, _MOST_CHILDREN, _MOST_SECONDS = 100_000, 1_000, 1e7

Kind = Literal["distribution", "integer", "number", "boolean", "choice", "rates"]


@dataclass(slots=True, frozen=True)
class Parameter:
    """kind distribution: of tokens or counts when `whole`, else of seconds; no value is below `least`."""

    kind: Kind
    help: str
    default: Any
    least: float = 0
    most: float = math.inf
    whole: bool = True
    choices: tuple[str, ...] = ()


def _distribution(help: str, default: Any = 0, least: float = 0, most: float = MOST_TOKENS) -> Parameter:
    return Parameter("distribution", help, default, least, most)


def _seconds(help: str) -> Parameter:
    return Parameter("distribution", help, 0, most=_MOST_SECONDS, whole=False)


def _share(help: str) -> Parameter:
    return Parameter("number", help, 0, most=1)


def _conversation(of: str) -> dict[str, Parameter]:
    """Return the parameters that every kind of conversation has."""
    return {
        "turns": _distribution(f"requests of {of}", 1, least=1, most=_MOST_TURNS),
        "first_input": _distribution(f"tokens of {of}'s first user message, besides what it shares", 100, least=1),
        "input": _distribution(f"tokens of each later user message of {of}", 100, least=1),
        "output": _distribution(f"tokens of each reply in {of}", 100, least=1),
        "wait_s": _seconds(f"seconds before each later user message of {of}"),
    }


def _under(prefix: str, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    return {f"{prefix}.{name}": parameter for name, parameter in parameters.items()}


FORMATS = ("dag_jsonl", "multi_turn", "single_turn", "mooncake_trace", "agentic_jsonl", "custom_multi_turn", "share_gpt")

PARAMETERS: Mapping[str, Parameter] = {
    "format": Parameter("choice", "format of the file", "dag_jsonl", choices=FORMATS),
    "conversations": Parameter("integer", "root conversations", 100, least=1, most=1_000_000),
    "arrivals.process": Parameter(
        "choice", "when they begin; none: the run says", "none", choices=("none", "constant", "poisson", "gamma", "weibull")
    ),
    "arrivals.rate_per_s": Parameter("number", "conversations that begin in a second", 1.0, least=1e-6, most=1e6),
    "arrivals.cv": Parameter(
        "number", "of gamma and weibull: how gaps vary, deviation over mean; above 1: bursts", 2.0, most=100
    ),
    "arrivals.rates": Parameter("rates", "rates over the time: see docs/formats.md", ""),
    "arrivals.spikes": Parameter("rates", "AT_S:LASTS_S:TIMES,...: when the rate is so many times as high", ""),
    "arrivals.duration_s": Parameter(
        "number", "time in which conversations begin, whose number follows; 0: that of arrivals.rates", 0, most=_MOST_SECONDS
    ),
    **_conversation("a conversation"),
    "system_prompt.tokens": _distribution("tokens of a system prompt"),
    "system_prompt.variants": Parameter("integer", "different system prompts", 1, least=1, most=1_000_000),
    "shared_context.tokens": _distribution("tokens that begin the first user messages of a group of conversations"),
    "shared_context.groups": Parameter("integer", "how many groups", 1, least=1, most=1_000_000),
    "shared_context.skew": Parameter("number", "0: groups are of equal size; 1: Zipf", 0.0, most=10),
    "documents.per_message": _distribution("documents that begin each user message", most=_MOST_CHILDREN),
    "documents.tokens": _distribution("tokens of a document", 500, least=1),
    "documents.pool": Parameter("integer", "different documents", 100, least=1, most=1_000_000),
    "documents.skew": Parameter("number", "0: each as often as the others; 1: Zipf", 0.0, most=10),
    "sub_agents.share": _share("share of the conversations that call sub-agents"),
    "sub_agents.calls": _distribution("times that one of these calls sub-agents", 1, least=1, most=_MOST_TURNS),
    "sub_agents.per_call": _distribution("sub-agents of one call", 1, least=1, most=_MOST_CHILDREN),
    "sub_agents.join_after": _distribution("turns until their results are waited for", 1, least=1, most=_MOST_TURNS),
    "sub_agents.nested": _share("share of the sub-agents that call sub-agents themselves, once"),
    "sub_agents.system_prompt_tokens": _distribution("tokens of the sub-agents' own system prompt"),
    **_under("sub_agents", _conversation("a sub-agent")),
    "forks.share": _share("share of the conversations that fork at their end"),
    "forks.children": _distribution("branches of such a fork; each inherits the history", 2, least=1, most=_MOST_CHILDREN),
    "forks.background": _share("share of the conversations that fork once in the background and go on"),
    **_under("forks", _conversation("a branch")),
    "exact_replies": Parameter("boolean", "replies of exactly so many tokens (min_tokens, ignore_eos), or at most", True),
}  # fmt: skip


def _hours(rates: Any, duration_s: float) -> RateSeries:
    """Return rates of hours, day after day where the duration is longer. Raises ValueError."""
    if not isinstance(rates, list) or not all(type(rate) in (int, float) and 0 <= rate < math.inf for rate in rates):
        raise ValueError("a table of hours is a list of numbers of conversations per second")
    if not any(rates):
        raise ValueError("every rate is 0")
    return RateSeries.hourly(rates * max(1, math.ceil(duration_s / HOUR_S / len(rates))))


def _spikes(text: Any) -> list[Spike]:
    found = []
    for part in str(text).split(",") if text else ():
        at_s, lasts_s, times = map(float, part.split(":")) if part.count(":") == 2 else (0.0, 0.0, 0.0)
        if not (0 <= at_s < math.inf and 0 < lasts_s < math.inf and 0 <= times < math.inf):
            raise ValueError(f"{part.strip()!r} is not AT_S:LASTS_S:TIMES, such as 600:60:5")
        found.append(Spike(at_s, lasts_s, times))
    return found


Values = dict[str, Any]
"""By dotted name: a mapping with its `distribution` for distributions, else a plain value."""


def defaults() -> Values:
    """Return the default of every parameter."""
    return {name: _stored(parameter, parameter.default) for name, parameter in PARAMETERS.items()}


def merge(values: Values, tree: Mapping[str, Any], problems: list[Problem], lines: Mapping[str, int] | None = None) -> None:
    """Put the values of a nested mapping into `values`; what is wrong goes to the problems. lines: of each dotted name."""
    for name, value in flattened(tree):
        try:
            put(values, name, value)
        except DistributionError as error:
            problems.append(Problem(str(error), (lines or {}).get(name), name))


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of everything in a nested mapping, where a whole distribution is one value."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in PARAMETERS:
            yield from flattened(value, f"{name}.")
        elif isinstance(value, Mapping) and "distribution" not in value:
            yield from ((f"{name}.{inner}", entry) for inner, entry in value.items())
        else:
            yield name, value


def put(values: Values, name: str, value: Any) -> None:
    """Set one parameter, or one parameter of a distribution. Raises DistributionError."""
    if name in PARAMETERS:
        values[name] = _stored(PARAMETERS[name], value)
        return
    whole, _, part = name.rpartition(".")
    if whole in PARAMETERS and PARAMETERS[whole].kind == "distribution":
        values[whole] = overridden(values[whole], part, value)
        return
    own = [other.removeprefix(f"{name}.") for other in PARAMETERS if other.startswith(f"{name}.")]
    if own:
        raise DistributionError(f"has parameters of its own: {', '.join(own)}")
    known = [*PARAMETERS, *(n.split(".")[0] for n in PARAMETERS if "." in n)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else "'llmirage generate PRESET --show' lists them"
    raise DistributionError(f"there is no such parameter ({hint})")


def _stored(parameter: Parameter, value: Any) -> Any:
    return parameters_of(value) if parameter.kind == "distribution" else value


class Reader:
    """Typed values of the parameters; what is wrong with them goes to the problems."""

    def __init__(self, values: Values, problems: list[Problem]) -> None:
        self._values = values
        self._problems = problems

    def distribution(self, name: str) -> Distribution:
        parameter = PARAMETERS[name]
        try:
            return read_distribution(self._values[name], least=parameter.least, most=parameter.most)
        except DistributionError as error:
            self._problems.append(Problem(str(error), field=name))
            return read_distribution(parameter.least)

    def number(self, name: str) -> float:
        parameter, value = PARAMETERS[name], self._values[name]
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not parameter.least <= number <= parameter.most:
            self._problems.append(
                Problem(f"{value!r} is no number from {parameter.least:g} to {parameter.most:g}", field=name)
            )
            return float(parameter.default)
        return number

    def integer(self, name: str) -> int:
        number = self.number(name)
        if not number.is_integer():
            self._problems.append(Problem(f"{number:g} is no whole number", field=name))
        return int(number)

    def boolean(self, name: str) -> bool:
        value = self._values[name]
        words = {"true": True, "false": False, "yes": True, "no": False}
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in words:
            self._problems.append(Problem(f"{value!r} is neither true nor false", field=name))
            return False
        return words[value.lower()]

    def rates(self, rate_per_s: float, duration_s: float) -> tuple[RateSeries | None, float]:
        """Return the rate over the time, None where it is always the same, and for how long it holds."""
        given, field = self._values["arrivals.rates"], "arrivals.rates"
        try:
            series = None
            if name := given if isinstance(given, str) else "":
                shares = SHAPES.get(shape_name(name))
                series = read_rate_series(name) if shares is None else None
                given = shares and [rate_per_s * share for share in shares]
            if given:
                series = _hours(given, duration_s)
            duration_s = duration_s or (series.points[-1][0] if series else 0.0)
            if series is None and duration_s:
                series = RateSeries.constant(rate_per_s)
            if series is not None and not duration_s:
                raise ValueError("they have no end: give arrivals.duration_s")
            field = "arrivals.spikes"
            if spikes := _spikes(self._values[field]):
                if series is None:
                    raise ValueError("they need arrivals.duration_s, or arrivals.rates")
                series = series.spiked(spikes)
            field = "arrivals.rates"
            if series is not None and series.until(duration_s) > PARAMETERS["conversations"].most:
                raise ValueError(f"{series.until(duration_s):,.0f} conversations would begin in {duration_s:g} s")
        except (TypeError, ValueError) as error:
            self._problems.append(Problem(str(error), field=field))
            return None, 0.0
        return series, duration_s

    def choice(self, name: str) -> str:
        value, choices = self._values[name], PARAMETERS[name].choices
        if value is None:
            value = "none"
        if value not in choices:
            self._problems.append(Problem(f"{value!r} is not one of {', '.join(choices)}", field=name))
            return choices[0]
        return str(value)

"""Every parameter of a synthetic workload: its dotted name, kind and meaning, read from presets, YAML files and changes.

A later source wins, value by value: `--set turns.mean=12` keeps the other parameters of the preset's distribution of turns.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from llmirage_client.workload.checking import MOST_TOKENS
from llmirage_client.workload.distributions import (
    Distribution,
    DistributionError,
    overridden,
    parameters_of,
    read_distribution,
    to_float,
)
from llmirage_client.workload.files import fault
from llmirage_client.workload.rates import HOUR_S, SHAPES, RateSeries, Spike, read_rate_series, shape_name
from llmirage_client.workload.schedule import ArrivalProcess, Process
from llmirage_client.workload.session import Problem, Tenant, WorkloadError
from llmirage_shared.yaml_lines import compose

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
        number = to_float(value)
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


_COLON_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to the base of 60: 7:9 is a range here, not 429."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _COLON_NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_COLON_NUMBERS[0], re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _COLON_NUMBERS[1],
    re.compile(r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?[0-9]+[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the mapping in a YAML file, and the line of every dotted name in it.

    Raises WorkloadError when there is none.
    """
    try:
        text = path.read_text("utf-8")
        node = compose(text, _Loader)
        tree = yaml.load(text, _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise fault(name, f"cannot be read: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise fault(name, f"invalid YAML: {what}", None if mark is None else mark.line + 1) from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise fault(name, "must hold parameters as NAME: VALUE")
    return {str(key): value for key, value in tree.items()}, dict(_lines(node))


def _lines(node: Any, prefix: str = "") -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{prefix}{key.value}"
        found.append((name, key.start_mark.line + 1))
        items = list(enumerate(value.value)) if isinstance(value, yaml.SequenceNode) else []
        found += [(f"{name}.{number}", item.start_mark.line + 1) for number, item in items]
        for place, inner in [("", value), *((f"{number}.", item) for number, item in items)]:
            if isinstance(inner, yaml.MappingNode):
                found += _lines(inner, f"{name}.{place}")
    return found


TENANTS = "tenants"
PRESET_FOLDER = Path(__file__).parent / "presets"


@dataclass(slots=True, frozen=True)
class Profile:
    """distributions, numbers: the other parameters, by their names in `parameters.PARAMETERS`.

    tenants: where there are any, a profile for each, and nothing is drawn from this one. tenant: whose profile it is.
    """

    name: str
    format: str
    conversations: int
    arrivals: ArrivalProcess
    exact_replies: bool
    distributions: Mapping[str, Distribution]
    numbers: Mapping[str, float]
    tenant: Tenant | None = None
    tenants: tuple[Profile, ...] = ()

    @property
    def branching(self) -> bool:
        own = any(self.numbers[name] for name in ("sub_agents.share", "forks.share", "forks.background"))
        return any(each.branching for each in self.tenants) if self.tenants else own


def presets() -> dict[str, Path]:
    """Return the files of the presets by name."""
    return {file.stem: file for file in sorted(PRESET_FOLDER.glob("*.yaml"))}


def read_profile(name: str, changes: Sequence[tuple[str, Any]] = (), rate_per_s: float | None = None) -> Profile:
    """Return the profile of a preset or a YAML file, with changes: (dotted name, value).

    rate_per_s: of arrivals; a Poisson process where nothing else says which. Raises WorkloadError with all problems.
    """
    problems: list[Problem] = []
    values, lines = read_values(name, changes, rate_per_s, problems)
    tenants = values.pop(TENANTS, [])
    profile = _profile(name, Reader(values, problems))
    profile = replace(profile, tenants=_tenants(profile, values, tenants, changes, problems))
    if problems:
        raise WorkloadError(name, [_with_line(problem, lines) for problem in problems])
    return profile


def _with_line(problem: Problem, lines: Mapping[str, int]) -> Problem:
    """Return the problem with the line of its field, or of what that is in, if it lacks one."""
    field, line = problem.field or "", problem.line
    while line is None and field:
        line, field = lines.get(field), field.rpartition(".")[0]
    return replace(problem, line=line)


def read_values(
    name: str, changes: Sequence[tuple[str, Any]], rate_per_s: float | None, problems: list[Problem]
) -> tuple[Values, Mapping[str, int]]:
    """Return the values, and the lines of those that a file of the user has and nothing changes.

    Raises WorkloadError for a file that cannot be read; what is wrong within it goes to the problems.
    """
    values = defaults()
    known = presets()
    path = known.get(name)
    if path is None:
        if not Path(name).exists():
            raise fault(name, f"there is no such preset or file; presets are {', '.join(known)}")
        path = Path(name)
    tree, lines = read_yaml(path, name)
    tenants = tree.pop(TENANTS, None)
    base = tree.pop("preset", None)
    if base is not None:
        if not isinstance(base, str) or base not in known:
            problems.append(Problem(f"{base!r} is not one of {', '.join(known)}", lines.get("preset"), "preset"))
        else:
            merge(values, read_yaml(known[base], base)[0], problems)
    merge(values, tree, problems, lines)
    for field, value in changes:
        try:
            put(values, field, value)
        except DistributionError as error:
            problems.append(Problem(str(error), field=field))
    if rate_per_s is not None:
        values["arrivals.rate_per_s"] = rate_per_s
        if values["arrivals.process"] in (None, "none"):
            values["arrivals.process"] = "poisson"
    if tenants is not None:
        values[TENANTS] = tenants
    changed = {part for field, _ in changes for part in (field, field.rpartition(".")[0])}
    return values, {} if name in known else {field: line for field, line in lines.items() if field not in changed}


def _tenants(
    profile: Profile, values: Values, given: Any, changes: Sequence[tuple[str, Any]], problems: list[Problem]
) -> tuple[Profile, ...]:
    """Return a profile for each tenant: the common values, its own, and then the changes."""
    found = list[Profile]()
    for number, tree in enumerate(given if isinstance(given, list) else [given]):
        at = f"{TENANTS}.{number}"
        if not isinstance(tree, dict):
            problems.append(Problem("a tenant is a mapping, such as {name: chat, rates: [2, 5, 3]}", field=at))
            continue
        own, wrong = dict(tree), list[Problem]()
        name, service, priority = (own.pop(key, None) for key in ("name", "class", "priority"))
        tenant = Tenant(str(name or f"tenant {number + 1}"), "" if service is None else str(service), priority or 0)
        if type(priority or 0) is not int:
            wrong.append(Problem(f"{priority!r} is not a whole number", field="priority"))
        if any(other.tenant is not None and other.tenant.name == tenant.name for other in found):
            wrong.append(Problem(f"{tenant.name!r} is the name of another tenant, too", field="name"))
        merged = dict(values)
        of_arrivals = {"shape": "rates", "rates": "rates", "peak": "rate_per_s"}  # as a tenant of `size --day` has them
        pairs = [(f"arrivals.{field}", own.pop(key)) for key, field in of_arrivals.items() if key in own]
        merge(merged, {**own, **dict(pairs)}, wrong)
        for field, value in changes:
            put(merged, field, value)
        one = _profile(profile.name, Reader(merged, wrong))
        if one.format != profile.format:
            wrong.append(Problem("is of the whole file, not of a tenant", field="format"))
        problems += [replace(problem, field=f"{at}.{problem.field}") for problem in wrong]
        found.append(replace(one, tenant=replace(tenant, service_class=tenant.service_class or tenant.name)))
    if len({one.arrivals.process == "none" for one in found}) > 1:
        problems.append(Problem("either all have arrivals, or none", field=TENANTS))
    return tuple(found)


def _profile(name: str, read: Reader) -> Profile:
    of_kind = {kind: [name for name, each in PARAMETERS.items() if each.kind == kind] for kind in get_args(Kind)}
    choices = {name: read.choice(name) for name in of_kind["choice"]}
    integers = {name: read.integer(name) for name in of_kind["integer"]}
    numbers = {name: read.number(name) for name in of_kind["number"]}
    process, rate_per_s = cast(Process, choices["arrivals.process"]), numbers["arrivals.rate_per_s"]
    rates, duration_s = read.rates(rate_per_s, numbers["arrivals.duration_s"])
    if rates is not None and process == "none":
        process = "poisson"
    return Profile(
        name=name,
        format=choices["format"],
        conversations=integers["conversations"],
        arrivals=ArrivalProcess(process, rate_per_s, numbers["arrivals.cv"], rates, duration_s),
        exact_replies=read.boolean("exact_replies"),
        distributions={name: read.distribution(name) for name in of_kind["distribution"]},
        numbers={**integers, **numbers},
    )

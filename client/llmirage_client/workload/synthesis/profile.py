"""The typed parameters of a synthetic workload, from a preset or a YAML file, read with the line of each, and changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import yaml

from llmirage_client.workload.distributions import Distribution, DistributionError
from llmirage_client.workload.files import fault
from llmirage_client.workload.schedule import ArrivalProcess, Process
from llmirage_client.workload.session import Problem, Tenant, WorkloadError
from llmirage_client.workload.synthesis.parameters import PARAMETERS, Kind, Reader, Values, defaults, merge, put
from llmirage_shared.yaml_lines import compose

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

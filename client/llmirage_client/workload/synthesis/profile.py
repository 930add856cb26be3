"""A synthetic workload's parameters as types, from a preset or a YAML file and what changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from llmirage_client.workload.arrival_process import ArrivalProcess, Process
from llmirage_client.workload.distributions import Distribution, DistributionError
from llmirage_client.workload.files import fault
from llmirage_client.workload.session import Problem, WorkloadError
from llmirage_client.workload.synthesis.parameters import Reader, Values, defaults, merge, put
from llmirage_client.workload.synthesis.yaml_file import read_yaml

PRESET_FOLDER = Path(__file__).parent / "presets"


@dataclass(slots=True, frozen=True)
class ConversationProfile:
    """Of one kind of conversation: how many requests, tokens of the user messages and replies, waits."""

    turns: Distribution
    first_input: Distribution
    input: Distribution
    output: Distribution
    wait_s: Distribution


@dataclass(slots=True, frozen=True)
class SharedContext:
    tokens: Distribution
    groups: int
    skew: float


@dataclass(slots=True, frozen=True)
class Documents:
    per_message: Distribution
    tokens: Distribution
    pool: int
    skew: float


@dataclass(slots=True, frozen=True)
class SubAgents:
    share: float
    calls: Distribution
    per_call: Distribution
    join_after: Distribution
    nested: float
    system_prompt_tokens: Distribution
    talk: ConversationProfile


@dataclass(slots=True, frozen=True)
class Forks:
    share: float
    children: Distribution
    background: float
    talk: ConversationProfile


@dataclass(slots=True, frozen=True)
class Profile:
    """What `parameters.PARAMETERS` explains, one field each."""

    name: str
    format: str
    conversations: int
    arrivals: ArrivalProcess
    talk: ConversationProfile
    system_prompt_tokens: Distribution
    system_prompt_variants: int
    shared_context: SharedContext
    documents: Documents
    sub_agents: SubAgents
    forks: Forks
    exact_replies: bool

    @property
    def branching(self) -> bool:
        return bool(self.sub_agents.share or self.forks.share or self.forks.background)


def presets() -> dict[str, Path]:
    return {file.stem: file for file in sorted(PRESET_FOLDER.glob("*.yaml"))}


def read_profile(name: str, changes: Sequence[tuple[str, Any]] = (), rate_per_s: float | None = None) -> Profile:
    """The profile of a preset or a YAML file, with changes: (dotted name, value).

    rate_per_s: of arrivals; a Poisson process where nothing else says which. Raises WorkloadError with all problems.
    """
    problems: list[Problem] = []
    values, lines = read_values(name, changes, rate_per_s, problems)
    profile = _profile(name, Reader(values, problems))
    if problems:
        raise WorkloadError(name, [_with_line(problem, lines) for problem in problems])
    return profile


def _with_line(problem: Problem, lines: Mapping[str, int]) -> Problem:
    """A value of the file that turned out wrong has a field and no line yet."""
    return replace(problem, line=lines.get(problem.field or "")) if problem.line is None else problem


def read_values(
    name: str, changes: Sequence[tuple[str, Any]], rate_per_s: float | None, problems: list[Problem]
) -> tuple[Values, Mapping[str, int]]:
    """The values, and the lines of those that a file of the user has and nothing changes.

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
    changed = {part for field, _ in changes for part in (field, field.rpartition(".")[0])}
    return values, {} if name in known else {field: line for field, line in lines.items() if field not in changed}


def _profile(name: str, read: Reader) -> Profile:
    return Profile(
        name=name,
        format=read.choice("format"),
        conversations=read.integer("conversations"),
        arrivals=ArrivalProcess(
            cast(Process, read.choice("arrivals.process")), read.number("arrivals.rate_per_s"), read.number("arrivals.cv")
        ),
        talk=_talk("", read),
        system_prompt_tokens=read.distribution("system_prompt.tokens"),
        system_prompt_variants=read.integer("system_prompt.variants"),
        shared_context=SharedContext(
            read.distribution("shared_context.tokens"),
            read.integer("shared_context.groups"),
            read.number("shared_context.skew"),
        ),
        documents=Documents(
            read.distribution("documents.per_message"),
            read.distribution("documents.tokens"),
            read.integer("documents.pool"),
            read.number("documents.skew"),
        ),
        sub_agents=SubAgents(
            read.number("sub_agents.share"),
            read.distribution("sub_agents.calls"),
            read.distribution("sub_agents.per_call"),
            read.distribution("sub_agents.join_after"),
            read.number("sub_agents.nested"),
            read.distribution("sub_agents.system_prompt_tokens"),
            _talk("sub_agents.", read),
        ),
        forks=Forks(
            read.number("forks.share"),
            read.distribution("forks.children"),
            read.number("forks.background"),
            _talk("forks.", read),
        ),
        exact_replies=read.boolean("exact_replies"),
    )


def _talk(prefix: str, read: Reader) -> ConversationProfile:
    names = ("turns", "first_input", "input", "output", "wait_s")
    return ConversationProfile(*(read.distribution(f"{prefix}{name}") for name in names))

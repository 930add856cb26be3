"""A synthetic workload's parameters as types, from a preset or a YAML file and what changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llmirage_client.workload.arrival_process import ArrivalProcess, Process
from llmirage_client.workload.distributions import Distribution, DistributionError
from llmirage_client.workload.files import fault
from llmirage_client.workload.session import Problem, WorkloadError
from llmirage_client.workload.synthesis.parameters import Reader, Values, defaults, merge, put

PRESET_FOLDER = Path(__file__).parent / "presets"


@dataclass(slots=True, frozen=True)
class Talk:
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
    talk: Talk


@dataclass(slots=True, frozen=True)
class Forks:
    share: float
    children: Distribution
    background: float
    talk: Talk


@dataclass(slots=True, frozen=True)
class Profile:
    """What `parameters.PARAMETERS` explains, one field each."""

    name: str
    conversations: int
    arrivals: ArrivalProcess
    talk: Talk
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


def read_profile(name: str, changes: Sequence[tuple[str, Any]] = ()) -> Profile:
    """The profile of a preset or a YAML file, with changes: (dotted name, value). Raises WorkloadError with all problems."""
    problems: list[Problem] = []
    values = read_values(name, changes, problems)
    profile = _profile(name, Reader(values, problems))
    if problems:
        raise WorkloadError(name, problems)
    return profile


def read_values(name: str, changes: Sequence[tuple[str, Any]], problems: list[Problem]) -> Values:
    """Raises WorkloadError for a file that cannot be read; what is wrong within it goes to the problems."""
    values = defaults()
    known = presets()
    path = known.get(name)
    if path is None:
        if not Path(name).exists():
            raise fault(name, f"there is no such preset or file; presets are {', '.join(known)}")
        path = Path(name)
    tree, lines = _yaml(path, name)
    base = tree.pop("preset", None)
    if base is not None:
        if base not in known:
            problems.append(Problem(f"'{base}' is not one of {', '.join(known)}", lines.get("preset"), "preset"))
        else:
            merge(values, _yaml(known[base], base)[0], problems)
    merge(values, tree, problems, lines)
    for field, value in changes:
        try:
            put(values, field, value)
        except DistributionError as error:
            problems.append(Problem(str(error), field=field))
    return values


def _yaml(path: Path, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in a YAML file, and the line of every dotted name in it."""
    import yaml

    try:
        text = path.read_text("utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        tree = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise fault(name, f"cannot be read: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise fault(name, f"invalid YAML: {what}", None if mark is None else mark.line + 1) from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise fault(name, "must hold parameters as NAME: VALUE")
    return {str(key): value for key, value in tree.items()}, dict(_lines(node))


def _lines(node: Any, prefix: str = "") -> list[tuple[str, int]]:
    import yaml

    found: list[tuple[str, int]] = []
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{prefix}{key.value}"
        found.append((name, key.start_mark.line + 1))
        if isinstance(value, yaml.MappingNode):
            found += _lines(value, f"{name}.")
    return found


def _profile(name: str, read: Reader) -> Profile:
    return Profile(
        name=name,
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


def _talk(prefix: str, read: Reader) -> Talk:
    names = ("turns", "first_input", "input", "output", "wait_s")
    return Talk(*(read.distribution(f"{prefix}{name}") for name in names))

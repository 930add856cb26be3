"""A fault and the requests that it meets: read from a file, a request's body or a header."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from llmirage_server.faults.fault import InjectedFault
from llmirage_server.faults.kinds import FAULTS
from llmirage_shared.extensions import find_extension, installed
from llmirage_shared.settings import About, ConfigError, did_you_mean, settings_of, under
from llmirage_shared.yaml_lines import Entry, YamlNode, read_mapping


def find_fault(kind: str, *, imports: bool) -> type[InjectedFault] | None:
    """Return the class of a kind, one of FAULTS or an extension; None if there is none.

    imports: whether `module:NAME` may be imported, which no request may ask for. Raises ValueError for a module that cannot
    be imported, or something that is no fault.
    """
    if kind in FAULTS:
        return FAULTS[kind]
    if kind not in installed("fault") and not (imports and ":" in kind):
        return None
    found = find_extension("fault", kind)
    if not (isinstance(found, type) and issubclass(found, InjectedFault)):
        raise ValueError(f"fault {kind!r}: it must be a subclass of llmirage.InjectedFault, not {found!r}")
    if not hasattr(found, "kind"):
        found.kind = kind
    if not hasattr(found, "example"):
        found.example = kind
    return found


@dataclass(frozen=True)
class FaultDescription:
    """The entry of a fault in a list. parameters: name and help of each."""

    kind: str
    summary: str
    parameters: tuple[tuple[str, str], ...]
    example: str
    streams_only: bool


def described(kind: type[InjectedFault]) -> FaultDescription:
    """Return the description of one kind, from its class."""
    summary = " ".join((inspect.getdoc(kind) or "").split())
    return FaultDescription(kind.kind, summary, parameter_texts(kind), kind.example, kind.streams_only)


def parameter_texts(kind: type[object]) -> tuple[tuple[str, str], ...]:
    """Name and help of each parameter that a class declares, with its default and its limits."""
    return tuple((name, about.help + _remarks(about)) for name, about in settings_of(kind).items())


def _remarks(about: About) -> str:
    default = about.default
    said = about.unset or ("true" if default is True else "false" if default is False else "")
    if not said and default is not None:
        said = f"{default:,g}" if isinstance(default, float) else str(default)
    told = [f"default: {said}"] if said else []
    if about.choices:
        told.append(f"one of {', '.join(about.choices)}")
    elif about.range:
        told.append(about.range)
    return f" ({'; '.join(told)})" if told else ""


# The endpoints that generate, by the names that conditions may use. A fault without `endpoint` meets all of them.
ENDPOINTS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "generate": "/generate",
    "inference": "/inference/v1/generate",
}
Report = Callable[[int, str, str], None]
"""Called with line, field and problem."""

_condition = under("Conditions")


_MOST_CHARACTERS = 1_000  # of a pattern: longer ones take long to read


def _long_problem(value: str | None) -> str | None:
    if value is None or len(value) <= _MOST_CHARACTERS:
        return None
    return f"must be at most {_MOST_CHARACTERS} characters long, not {len(value)}"


def _endpoint_problem(value: str | None) -> str | None:
    if problem := _long_problem(value):
        return problem
    if value is None or value in ENDPOINTS or value.startswith("/"):
        return None
    hint = did_you_mean(value, ENDPOINTS)
    return f"must be one of {', '.join(ENDPOINTS)}, or a path such as /v1/models or /v1/*; not {value!r}{hint}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A request as conditions see it. body, instance: None until they are known."""

    method: str
    path: str
    key: str
    body: Mapping[str, Any] | None = None
    instance: int | None = None


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The requests that a fault meets. All that are given must hold."""

    model: str | None = _condition(
        None, "Model named in the request; `*` stands for anything.", unset="any", check=_long_problem
    )
    endpoint: str | None = _condition(
        None,
        f"{', '.join(ENDPOINTS)}; or a path, where `*` stands for anything.",
        unset="POST to any of those named",
        check=_endpoint_problem,
    )
    key: str | None = _condition(None, "API key of the request.", unset="any", check=_long_problem)
    instance: int | None = _condition(
        None, "Number of the instance that serves the request, over the whole cluster.", unset="any", least=0
    )
    probability: float = _condition(1.0, "Share of the matching requests, drawn by --seed.", above=0, most=1)
    times: int | None = _condition(None, "How often it happens; later requests succeed.", unset="always", least=1)
    from_s: float = _condition(
        0.0, "Begin so many seconds of the cluster's time after the start, or after the fault was added.", least=0
    )
    until_s: float | None = _condition(None, "End at that time.", unset="it does not end", above=0)

    def at(self, now_s: float) -> bool:
        return self.from_s <= now_s and (self.until_s is None or now_s < self.until_s)

    def fit_head(self, subject: Subject) -> bool:
        """Return if what is known before the body matches."""
        if self.endpoint is None:
            asked = subject.method in _WITH_BODY and subject.path in _GENERATE
        else:
            asked = _like(subject.path, self._path(self.endpoint))
        return asked and (self.key is None or self.key == subject.key)

    def may_stream(self) -> bool:
        """Return if any endpoint that it names can stream."""
        named = self.endpoint
        return named is None or any(_like(ENDPOINTS[name], self._path(named)) for name in _STREAMING)

    @staticmethod
    def _path(endpoint: str) -> str:
        return ENDPOINTS.get(endpoint, endpoint)


def _like(text: str, pattern: str) -> bool:
    """Return if a text fits a pattern in which `*` stands for anything, and nothing else for something."""
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


_GENERATE = frozenset(ENDPOINTS.values())
_WITH_BODY = ("POST", "PUT")  # SGLang's /generate takes either
_STREAMING = ENDPOINTS.keys() - {"embeddings"}


@dataclass(eq=False)
class FaultRule:
    """A fault, its conditions, and how often it has happened.

    source: where it was given, `file:line` for instance. number: its id once it is in force. since_s: when that was.
    """

    fault: InjectedFault
    conditions: Conditions
    source: str = ""
    number: int = 0
    since_s: float = 0.0
    happened: int = 0
    draws: random.Random = field(default_factory=random.Random)

    def begin(self, number: int, seed: int, now_s: float) -> None:
        """Put the rule in force."""
        self.number = number
        self.since_s = now_s
        self.draws = random.Random(f"{seed}:{number}")

    def fits(self, subject: Subject, now_s: float) -> bool | None:
        """Return if it may happen to a request; None if that depends on what is not known of it yet."""
        wanted = self.conditions
        spent = wanted.times is not None and self.happened >= wanted.times
        if spent or not wanted.at(now_s - self.since_s) or not wanted.fit_head(subject):
            return False
        if wanted.model is not None or self.fault.streams_only:
            if subject.body is None:
                return None
            if not self._fits_body(subject.body):
                return False
        if wanted.instance is not None:
            return None if subject.instance is None else wanted.instance == subject.instance
        return True

    def _fits_body(self, body: Mapping[str, Any]) -> bool:
        wanted, named = self.conditions.model, body.get("model")
        if wanted is not None and not (isinstance(named, str) and _like(named, wanted)):
            return False
        return bool(body.get("stream")) or not self.fault.streams_only

    def drawn(self) -> bool:
        """Return if it happens to a request that it fits. Counts those to which it does."""
        if self.conditions.probability < 1 and self.draws.random() >= self.conditions.probability:
            return False
        self.happened += 1
        return True

    def shown(self) -> dict[str, Any]:
        """As JSON data: what was given for it, without the API key, and how often it has happened."""
        wanted = self.conditions
        defaults = {name: about.default for name, about in settings_of(Conditions).items()}
        given = {name: getattr(wanted, name) for name, default in defaults.items() if getattr(wanted, name) != default}
        hidden = {"key": "[redacted]"} if wanted.key is not None else {}
        fault = {"id": self.number, "kind": self.fault.kind, **self.fault.parameters()}
        return {**fault, **given, **hidden, "happened": self.happened, "source": self.source}


def read_faults_file(path: str) -> list[FaultRule]:
    """Read the faults of a file, in order. Raises ConfigError with `file:line: field: problem` for all problems."""
    problems: list[str] = []

    def report(line: int, place: str, problem: str) -> None:
        problems.append(f"{path}:{line}: {place}: {problem}")

    rules: list[FaultRule] = []
    entries = read_mapping(path, "a file of faults")
    if not entries:
        report(1, "faults", "is missing: a file of faults begins with `faults:`")
    for entry in entries:
        if entry.key != "faults":
            report(entry.line, entry.key, f"unknown key{did_you_mean(entry.key, ['faults'])}; known: faults")
            continue
        rules += read_rules(entry.node, "faults", report, path, imports=True)
    if problems:
        raise ConfigError(problems)
    return rules


def read_rules(node: YamlNode, place: str, report: Report, source: str = "", *, imports: bool = False) -> list[FaultRule]:
    """Read a list of faults. source: where it stands, for the lists of faults in force. imports: as `find_fault` has it."""
    if node.items is None:
        report(node.line, place, "must be a list of faults, each such as {kind: status, status: 503}")
        return []
    read = [read_rule(item, f"{place}[{index}]", report, source, imports=imports) for index, item in enumerate(node.items)]
    return [rule for rule in read if rule is not None]


def read_rule(node: YamlNode, place: str, report: Report, source: str = "", *, imports: bool = False) -> FaultRule | None:
    """One fault with its conditions: `{kind: NAME, ...}`, or in one line `NAME; parameter=value; ...`.

    None if something is wrong with it, which `report` has been told.
    """
    if isinstance(node.value, str):
        node = _from_text(node)
    if node.entries is None:
        report(node.line, place, "must be a fault such as {kind: status, status: 503}")
        return None
    kinds = [entry for entry in node.entries if entry.key == "kind"]
    if not kinds:
        report(node.line, place, f"kind is missing: one of {', '.join(FAULTS)}")
        return None
    said = kinds[0].node.value
    try:
        kind = find_fault(str(said), imports=imports)
    except ValueError as error:
        report(kinds[0].line, f"{place}.kind", str(error))
        return None
    if kind is None:
        known = [*FAULTS, *installed("fault")]
        report(
            kinds[0].line, f"{place}.kind", f"there is no fault {said!r}{did_you_mean(said, known)}; see `llmirage faults`"
        )
        return None
    reader = _RuleReader(kind, place, report)
    values = reader.values([entry for entry in node.entries if entry is not kinds[0]])
    return (
        None
        if values is None
        else reader.rule(node.line, values, f"{source}:{node.line}" if source and node.line else source)
    )


class _RuleReader:
    """Reads the fields of one fault."""

    def __init__(self, kind: type[InjectedFault], place: str, report: Report) -> None:
        self._kind = kind
        self._place = place
        self._report = report
        self._known: dict[str, About] = {**settings_of(kind), **settings_of(Conditions)}

    def values(self, entries: list[Entry]) -> dict[str, Any] | None:
        values: dict[str, Any] = {}
        wrong = False
        for entry in entries:
            problem = ""
            about = self._known.get(entry.key)
            if entry.key == "kind" or entry.key in values:
                problem = "given twice"
            elif about is None:
                problem = (
                    f"unknown key{did_you_mean(entry.key, self._known)}; {self._kind.kind} has {', '.join(self._known)}"
                )
            else:
                try:
                    value = entry.node.value
                    values[entry.key] = about.convert(value.typed(about) if isinstance(value, _FaultWord) else value)
                except ValueError as error:
                    problem = str(error)
            if problem:
                wrong = True
                self._report(entry.line, f"{self._place}.{entry.key}", problem)
        return None if wrong else values

    def rule(self, line: int, values: dict[str, Any], source: str) -> FaultRule | None:
        of_fault = settings_of(self._kind)
        try:
            fault = self._kind(**{name: value for name, value in values.items() if name in of_fault})
            conditions = Conditions(**{name: value for name, value in values.items() if name not in of_fault})
            if conditions.until_s is not None and conditions.until_s <= conditions.from_s:
                raise ConfigError([f"until_s ({conditions.until_s:g}) must be later than from_s ({conditions.from_s:g})"])
            for given, other in self._kind.exclusive:
                if given in values and other in values:
                    raise ConfigError([f"{other} does not go with {given}"])
            if fault.streams_only and not conditions.may_stream():
                raise ConfigError([f"{self._kind.kind} happens to streams only, and {conditions.endpoint} has none"])
            if conditions.instance is not None and fault.limits is not None:
                raise ConfigError(["instance does not go with rate_limit: a request is counted before it gets an instance"])
        except ConfigError as error:
            for problem in error.problems:
                self._report(line, self._place, problem)
            return None
        return FaultRule(fault, conditions, source)


def _from_text(node: YamlNode) -> YamlNode:
    """`cut; after_tokens=20` as a mapping."""
    kind, *parts = [part.strip() for part in node.value.split(";")]
    pairs = [part.partition("=") for part in parts if part]
    given = [("kind", kind), *[(name.strip(), _FaultWord(value.strip())) for name, _, value in pairs]]
    entries = tuple(Entry(name, node.line, YamlNode(node.line, value)) for name, value in given)
    return YamlNode(node.line, {entry.key: entry.node.value for entry in entries}, entries=entries)


class _FaultWord(str):
    """A value that was given as a text, whatever its type."""

    __slots__ = ()

    def typed(self, about: About) -> Any:
        """Return the text as a value of the argument's kinds. Raises ValueError."""
        if bool in about.kinds and self.lower() in ("true", "false"):
            return self.lower() == "true"
        return about.parse(str(self))

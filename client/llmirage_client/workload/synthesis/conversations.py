"""Plans drawn from a profile: conversations, branches, and messages as stretches of text by key and length.

Each conversation has random numbers of its own, so that the first ones do not depend on how many there are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from llmirage_client.workload.session import Tenant
from llmirage_client.workload.synthesis.parameters import PARAMETERS, TENANTS, Profile, Values


@dataclass(slots=True, frozen=True)
class Piece:
    """Prose of `tokens` tokens; equal keys are equal text."""

    key: int
    tokens: int


@dataclass(slots=True, frozen=True)
class Children:
    """Conversations that begin after a turn's reply. join_at: the turn that waits for them."""

    names: tuple[str, ...]
    fork: bool = False
    background: bool = False
    join_at: int | None = None


@dataclass(slots=True)
class PlannedTurn:
    """One user message, of one or more stretches of text, and the reply's length."""

    pieces: tuple[Piece, ...]
    output_tokens: int
    wait_s: float = 0.0
    children: list[Children] = field(default_factory=list)


@dataclass(slots=True)
class PlannedConversation:
    """A conversation before its texts are written."""

    name: str
    turns: list[PlannedTurn]
    system: Piece | None = None
    arrival_s: float | None = None
    tenant: Tenant | None = None


@dataclass(slots=True)
class Plan:
    """conversations: parents before their children. drawn: every value drawn so far, by the parameter's name.

    tenants: the plan of each, where the profile has any.
    """

    conversations: list[PlannedConversation]
    drawn: dict[str, list[float]]
    tenants: tuple[Plan, ...] = ()


def draw_plan(profile: Profile, seed: int) -> Plan:
    """Draw a plan. The same profile and seed give the same plan."""
    (plan,) = draw_parts(profile, seed, math.inf)
    return plan


def draw_parts(profile: Profile, seed: int, tokens: float) -> Iterator[Plan]:
    """Yield the plan in parts of whole trees, which end where a file of them has so many tokens; that of tenants whole."""
    if not profile.tenants:
        yield from _PlanBuilder(profile, seed).parts(tokens)
        return
    plans = [next(_PlanBuilder(one, (seed, one.tenant and one.tenant.name)).parts(math.inf)) for one in profile.tenants]
    yield Plan([each for plan in plans for each in plan.conversations], {}, tuple(plans))


class _PlanBuilder:
    def __init__(self, profile: Profile, seed: object) -> None:
        self._profile = profile
        self._numbers = profile.numbers
        self._seed = seed
        self._drawn: dict[str, list[float]] = defaultdict(list)
        self._conversations: list[PlannedConversation] = []
        self._source = self._rng("shared")
        self._systems = self._pieces("system_prompt.tokens", "system_prompt.variants")
        self._sub_system = self._sub_agents_system_prompt()
        self._contexts = self._pieces("shared_context.tokens", "shared_context.groups")
        self._context_chances = self._zipf("shared_context.groups", "shared_context.skew")
        per_message = profile.distributions["documents.per_message"]
        no_documents = per_message.kind == "constant" and per_message.one(self._source) == 0
        self._documents = [] if no_documents else self._pieces("documents.tokens", "documents.pool")
        self._document_chances = self._zipf("documents.pool", "documents.skew")

    def parts(self, tokens: float) -> Iterator[Plan]:
        profile = self._profile
        name = PurePath(profile.name).stem if profile.tenant is None else profile.tenant.name
        times_s = profile.arrivals.times_s(profile.conversations, self._rng("arrivals"))
        roots = profile.conversations if times_s is None else len(times_s)
        written = 0
        for number in range(roots):
            self._source = self._rng("conversation", number)
            tree = len(self._conversations)
            self._root(f"{name}-{number:04d}", None if times_s is None else times_s[number])
            written += sum(map(self._written_tokens, self._conversations[tree:]))
            for conversation in self._conversations[tree:]:
                conversation.tenant = profile.tenant
            if written >= tokens or number == roots - 1:
                yield Plan(self._conversations, self._drawn)
                self._conversations, written = [], 0

    def _written_tokens(self, conversation: PlannedConversation) -> int:
        """Return the tokens of the conversation in a file, in which calls of agentic_jsonl repeat the history."""
        written = context = 0
        for turn in conversation.turns:
            own = sum(piece.tokens for piece in turn.pieces)
            context += own + turn.output_tokens
            written += context if self._profile.format == "agentic_jsonl" else own
        return written

    def _root(self, name: str, arrival_s: float | None) -> None:
        source = self._source
        system = self._systems[source.integers(len(self._systems))]
        context = self._contexts[source.choice(len(self._contexts), p=self._context_chances)]
        root = PlannedConversation(name, self._turns("", name, [context]), system, arrival_s)
        self._conversations.append(root)
        if self._happens("sub_agents.share"):
            self._call_sub_agents(root, self._count("sub_agents.calls", 1))
        if self._happens("forks.background") and len(root.turns) > 1:
            at = int(source.integers(len(root.turns) - 1))
            root.turns[at].children.append(Children(self._branches(root, 1, "background"), fork=True, background=True))
        if self._happens("forks.share"):
            children = self._count("forks.children", 1)
            root.turns[-1].children.append(Children(self._branches(root, children, "branch"), fork=True))

    def _call_sub_agents(self, caller: PlannedConversation, calls: int, nested: bool = False) -> None:
        """Place agents at different turns of the caller, but not its last: some turn has to wait for the results."""
        last = len(caller.turns) - 1
        places = sorted(self._source.choice(last, size=min(calls, last), replace=False).tolist()) if last else []
        for place in places:
            join_at = min(place + self._count("sub_agents.join_after", 1), last)
            names: list[str] = []
            for _ in range(self._count("sub_agents.per_call", 1)):
                name = f"{caller.name}/agent-{place}-{len(names)}"
                child = PlannedConversation(name, self._turns("sub_agents.", name, []), self._sub_system)
                self._conversations.append(child)
                names.append(name)
                if not nested and self._happens("sub_agents.nested"):
                    self._call_sub_agents(child, 1, nested=True)
            caller.turns[place].children.append(Children(tuple(names), join_at=join_at))

    def _branches(self, parent: PlannedConversation, count: int, kind: str) -> tuple[str, ...]:
        names = tuple(f"{parent.name}/{kind}-{number}" for number in range(count))
        for name in names:
            self._conversations.append(PlannedConversation(name, self._turns("forks.", name, [])))
        return names

    def _turns(self, prefix: str, name: str, shared: Sequence[Piece]) -> list[PlannedTurn]:
        turns = []
        for number in range(self._count(f"{prefix}turns", 1)):
            tokens = self._count(f"{prefix}input" if number else f"{prefix}first_input", 1)
            heads = [piece for piece in shared if piece.tokens] if number == 0 else []
            if prefix == "":
                heads += self._retrieved()
            reply = self._count(f"{prefix}output", 1)
            wait_s = 0.0
            if number:
                wait_s = round(self._profile.distributions[f"{prefix}wait_s"].one(self._source), 3)
                self._drawn[f"{prefix}wait_s"].append(wait_s)
            pieces = (*heads, Piece(self._key("message", name, number), tokens))
            turns.append(PlannedTurn(pieces, reply, wait_s))
        return turns

    def _retrieved(self) -> list[Piece]:
        """Return different documents, those most in demand first more often than not."""
        if not self._documents:
            return []
        wanted = min(self._count("documents.per_message", 0), len(self._documents))
        chosen = self._source.choice(len(self._documents), size=wanted, replace=False, p=self._document_chances)
        return [self._documents[i] for i in chosen.tolist()]

    def _happens(self, share: str) -> bool:
        """Return whether it does in this conversation. Nothing is drawn for a share of 0."""
        return bool(self._numbers[share]) and self._source.random() < self._numbers[share]

    def _count(self, name: str, least: int) -> int:
        number = self._profile.distributions[name].count(self._source, least=least)
        self._drawn[name].append(number)
        return number

    def _pieces(self, name: str, count: str) -> list[Piece]:
        lengths = self._profile.distributions[name].counts(self._source, int(self._numbers[count]))
        if any(lengths):
            self._drawn[name] += lengths
        return [Piece(self._key(name, number), length) for number, length in enumerate(lengths)]

    def _sub_agents_system_prompt(self) -> Piece:
        name = "sub_agents.system_prompt_tokens"
        tokens = self._profile.distributions[name].count(self._source) if self._numbers["sub_agents.share"] else 0
        if tokens:
            self._drawn[name].append(tokens)
        return Piece(self._key(name), tokens)

    def _zipf(self, count: str, skew: str) -> list[float]:
        weights = np.arange(1, int(self._numbers[count]) + 1, dtype=np.float64) ** -self._numbers[skew]
        chances: list[float] = (weights / weights.sum()).tolist()
        return chances

    def _key(self, *place: object) -> int:
        return _number(self._seed, *place) >> 2

    def _rng(self, *place: Any) -> np.random.Generator:
        return np.random.default_rng(_number(self._seed, *place))


def _number(*place: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest())


_SAMPLES = 100_000


@dataclass(slots=True, frozen=True)
class Moments:
    """Mean and percentiles of a sample."""

    mean: float
    p50: float
    p95: float


@dataclass(slots=True, frozen=True)
class Line:
    """One parameter: how it was asked for, the figures of that distribution, and those of what was drawn."""

    name: str
    asked_as: str
    asked: Moments
    drawn: Moments
    count: int


def compare(profile: Profile, plan: Plan) -> list[Line]:
    """Return a line for every distribution that was drawn from. asked: figures of 100,000 draws; the same in every call."""
    lines = [
        replace(line, name=f"{one.tenant.name}: {line.name}")
        for one, own in zip(profile.tenants, plan.tenants, strict=True)
        if one.tenant is not None
        for line in compare(one, own)
    ]
    for name, distribution in profile.distributions.items():
        drawn = plan.drawn.get(name)
        if not drawn:
            continue
        source = np.random.default_rng(0)
        seconds = name.endswith("wait_s")
        wanted: Any = distribution.sample(source, _SAMPLES) if seconds else distribution.counts(source, _SAMPLES)
        lines.append(Line(name, str(distribution), _figures(wanted), _figures(drawn), len(drawn)))
    return lines


def gaps(times: Sequence[float]) -> tuple[float, float] | None:
    """Return arrivals per second and how the gaps between them vary (standard deviation over mean); None without times."""
    times = sorted(times)
    if len(times) < 3 or times[-1] <= times[0]:
        return None
    between = np.diff(np.array(times))
    return float(1 / between.mean()), float(between.std() / between.mean())


def _figures(values: Sequence[float] | Any) -> Moments:
    array = np.asarray(values, dtype=np.float64)
    p50, p95 = np.percentile(array, [50, 95])
    return Moments(float(array.mean()), float(p50), float(p95))


def as_yaml(values: Values) -> str:
    """Return all parameters; reading the text gives the same values."""
    lines = []
    section = ""
    for name, parameter in PARAMETERS.items():
        group, dot, key = name.rpartition(".")
        if group != section:
            section = group
            if dot:
                lines.append(f"{group}:")
        indent = "  " if dot else ""
        lines.append(f"{indent}{key}: {_shown(values[name])}  # {parameter.help}")
    if TENANTS in values:
        lines.append(f"{TENANTS}: {json.dumps(values[TENANTS])}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    if value.get("distribution") == "constant":
        return json.dumps(value["value"])
    return "{" + ", ".join(f"{key}: {json.dumps(entry)}" for key, entry in value.items()) + "}"

"""One Record per request: everything measured about it, and nothing derived.

Token counts of the `usage` object of a reply are under AIPerf's names for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from llmirage_client.measure.distortion import Distortion
from llmirage_client.measure.submission import PerformanceWindow, ReplayCounts, Submission
from llmirage_client.workload.session import NOBODY, Tenant
from llmirage_shared.plural import plural

NOTABLE = 0.25  # of the first prompts found in a cache: more than a shared chat template


@dataclass(slots=True, frozen=True)
class Repeats:
    """Distinct conversations and repeats among the root conversations that ran.

    conversations: how many; distinct: of those, how many different ones the workload has; most: how often one of them ran.
    varied: every repeat had tokens of its own. unfilled: the concurrency that was asked for, where there were fewer roots.
    hit_share: of the prompt tokens that were found in a cache, those that a repeat found beyond its own earlier turns and
    beyond what the first run of its conversation found there. known_share: of the tokens of first prompts, those that the
    endpoint had in its cache though no conversation of this run begins with them. None: not known.
    """

    conversations: int
    distinct: int
    most: int
    varied: bool
    unfilled: int | None = None
    hit_share: float | None = None
    known_share: float | None = None

    @property
    def doubtful(self) -> bool:
        """True if the run's figures are those of prompts that the endpoint had seen before."""
        return (self.most > 1 and not self.varied) or self.known

    @property
    def known(self) -> bool:
        return self.known_share is not None and self.known_share > NOTABLE

    @property
    def notes(self) -> list[str]:
        ran, notes = f"{plural(self.conversations, 'conversation')} ran", []
        if self.most > 1 and self.varied:
            notes.append(
                f"{ran}, made of the {self.distinct:,} of the workload: each came up to {self.most:,} times, with user "
                "messages, tool results and replies of its own each time (--no-vary repeats them token for token)."
            )
        elif self.most > 1:
            hits = "" if self.hit_share is None else f", and {self.hit_share:.1%} of the cache hits come from repeats"
            notes.append(
                f"{ran}, but only {self.distinct:,} are distinct: each came up to {self.most:,} times, token for token. "
                f"Copies share their KV cache{hits}. --vary gives each repeat fresh tokens."
            )
        if self.unfilled is not None:
            notes.append(
                f"Concurrency {self.unfilled:,} was not reached: {ran}, each once. "
                f"--agents {self.unfilled} runs as many distinct ones, made of these."
            )
        if self.known:
            notes.append(
                f"The endpoint had {self.known_share:.0%} of the first prompts' tokens in its cache before they were sent, "
                "though this run has nothing like them: it knows them from an earlier run. "
                "Restart it, empty its prefix cache, or send other conversations (--dataset-offset)."
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return asdict(self) | {"notes": self.notes}


Verdict = Literal["fine", "off", "scattered", "evicted", "too few hits", "not reported", "nothing to judge"]
LEAST_REPEATED = 64  # tokens that a prompt must have in common with an earlier one


@dataclass(slots=True, frozen=True)
class CacheVerdict:
    """The verdict on the prefix cache of a run's endpoint.

    possible_tokens: of prompts that begin as an earlier one whose first token had come; the least that may be found.
    requests: with such a beginning. cached_tokens: of these tokens, those that the endpoint had; None: it does not say.
    counted_by: what says so. soon_share, late_share: of the possible tokens, by how much was sent in between.
    """

    verdict: Verdict
    requests: int
    possible_tokens: int
    cached_tokens: int | None
    counted_by: Literal["usage", "/metrics"] | None
    soon_share: float | None = None
    late_share: float | None = None

    @property
    def share(self) -> float | None:
        return None if self.cached_tokens is None else self.cached_tokens / max(self.possible_tokens, 1)

    @property
    def notes(self) -> list[str]:
        if self.verdict == "nothing to judge":
            return [f"Prefix cache: nothing to judge, no prompt begins with {LEAST_REPEATED} tokens of an earlier one."]
        of = f"of {self.possible_tokens:,} tokens that {self.requests:,} requests repeat"
        if self.share is None:
            return [f"Prefix cache: the endpoint does not say, neither in its usage nor at /metrics, what it had {of}."]
        found = f"{self.share:.0%} {of} came from the cache, by {self.counted_by}"
        by_time = ""
        if self.soon_share is not None and self.late_share is not None:
            by_time = f" ({self.soon_share:.0%} of what came again soon, {self.late_share:.0%} of what came late)"
        why = {
            "fine": "it works",
            "off": "it is off, or does not keep prompts such as these",
            "scattered": "requests of a conversation go to several instances, as its router does not keep them together",
            "evicted": "blocks are evicted before they come again: the cache is too small for this load",
            "too few hits": "its router scatters, or blocks are evicted; /metrics alone does not tell which",
        }
        return [f"Prefix cache: {why[self.verdict]}. {found}{by_time}."]

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return asdict(self) | {"share": self.share, "notes": self.notes}


CANCELLED = "cancelled"  # the type of the error of a request that the client itself gave up
BranchMode = Literal["root", "fork", "spawn"]


@dataclass(slots=True, frozen=True)
class RequestError:
    """The error of a failed request. code: the HTTP status, if the reply had one; type: a stable name."""

    code: int | None
    type: str
    message: str

    def one_line(self, most: int) -> str:
        """Return the message in at most `most` characters, without control characters that a terminal obeys."""
        plain = " ".join("".join(c if c.isprintable() else " " for c in self.message).split())
        return plain if len(plain) <= most else plain[: most - 3] + "..."


@dataclass(slots=True)
class Exchange:
    """Observations of one request on the wire. All times are seconds on the run's clock (see targets.target).

    token_s: arrival of each event that carried text, reasoning or a tool call; for a reply that was not streamed, the one
        arrival of the body. Empty when nothing came.
    message: the assistant message to thread into the history, without reasoning; None when there is nothing to append.
    items: the same in the form of an API whose histories are not chat's messages. response_id: the server's name for it.
    usage: in the words of chat completions, whatever the API. finish_reason: likewise (stop, length, tool_calls).
    skipped_events: events of a stream that were not JSON, and were left out because it ended as a stream should.
    retries: how often it was sent again; start_s is that of the first attempt. url: which of several endpoints took it.
    other_model: the model that was asked for and the one that the reply names, where they are two.
    """

    start_s: float
    ack_s: float | None = None  # response headers arrived
    end_s: float | None = None  # last byte arrived, or the error happened
    token_s: list[float] = field(default_factory=list)
    first_output_s: float | None = None  # first token that is not reasoning
    status: int | None = None
    streamed: bool = False
    text: str = ""
    reasoning: str = ""
    message: dict[str, Any] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    error: RequestError | None = None
    items: list[dict[str, Any]] | None = None
    response_id: str | None = None
    skipped_events: int = 0
    retries: int = 0
    url: str | None = None
    other_model: tuple[str, str] | None = None
    instance: int | None = None  # of a simulated cluster
    retry_after_s: float | None = None  # with an error: when the server wants to see us again
    body_s: float | None = None  # the first bytes of the reply's body arrived


@dataclass(slots=True)
class Record:
    """One request with its place in the run. Ids are those that went out in the headers.

    issued_s: when it was due: its arrival or schedule said so, or the reply or join before it came and its delay was over.
        What lies between this and exchange.start_s is the client's own delay.
    turns: how many its conversation has in the workload. branch_mode: how that began.
    parent_turn_index: the parent's turn whose reply started a child.
    joined: correlation ids of the children that this turn waited for.
    """

    session_num: int
    conversation_id: str
    turn_index: int
    request_id: str
    correlation_id: str
    root_correlation_id: str
    parent_correlation_id: str | None
    agent_depth: int
    issued_s: float
    exchange: Exchange
    phase: str = "profiling"  # or "warmup"
    cancelled: bool = False
    input_tokens: int | None = None  # counted by us when the workload or a tokenizer says; else the server's usage counts
    output_tokens: int | None = None  # likewise; without either, each content event counts as one
    output_tokens_asked: int | None = None
    branch_mode: BranchMode = "root"
    parent_turn_index: int | None = None
    joined: tuple[str, ...] = ()
    turns: int | None = None
    input_tokens_asked: int | None = None  # of the workload, in its tokenizer
    tenant: Tenant = NOBODY

    @property
    def ok(self) -> bool:
        return self.exchange.error is None and not self.cancelled


@dataclass(slots=True)
class BranchStats:
    """Counters of a branching run; names and meaning are those of AIPerf's branch_stats."""

    children_spawned: int = 0
    children_completed: int = 0
    children_errored: int = 0
    children_truncated: int = 0
    parents_suspended: int = 0
    parents_resumed: int = 0
    parents_failed_due_to_child_error: int = 0
    joins_suppressed: int = 0
    children_delayed: int = 0  # children whose first turn has a delay
    graphs_admitted: int = 0  # orchestrators that began
    graphs_completed_to_end: int = 0  # and that waited for the children of their last round


@dataclass(slots=True, frozen=True)
class ClientCost:
    """None: not measured. Times are of cluster time, but for CPU and wall.

    timers_late_p95_ms, _max_ms: how long after their due time the event loop's timers fired.
    sends_late_p95_ms, _max_ms: how long after their due time requests left (schedule lag).
    late, busy: whether either is beyond its limit; see docs/metrics.md.
    """

    cpu_s: float | None
    wall_s: float
    timers_late_p95_ms: float | None
    timers_late_max_ms: float | None
    sends_late_p95_ms: float | None
    sends_late_max_ms: float | None
    late: bool
    busy: bool

    @property
    def was_bottleneck(self) -> bool:
        return self.late or self.busy

    @property
    def cpu_share(self) -> float | None:
        """The used share of one CPU core."""
        return self.cpu_s / self.wall_s if self.cpu_s is not None and self.wall_s > 0 else None


@dataclass(slots=True, frozen=True)
class WorkerResult:
    """One of several processes that sent a run together.

    host: the machine. requests: recorded from it. cost: None when it did not tell.
    clock_offset_s: its wall clock less that of the machine that led the run; clock_error_s: how far that, and so its times
    against those of other workers, may be off. clock_drift_s: how much the two clocks moved against each other in the run.
    late_start_s: how long after the common start it began. lost: why it did not come to its end.
    """

    number: int
    host: str
    requests: int
    cost: ClientCost | None
    clock_offset_s: float
    clock_error_s: float
    clock_drift_s: float | None = None
    late_start_s: float = 0.0
    lost: str | None = None


@dataclass(slots=True, frozen=True)
class Mismatch:
    """One kind of difference.

    kind: reply_length, prompt_length, chunks or model. requests: that differ, of `judged`. asked, got: medians of those in
    tokens (chunks: tokens by usage, and chunks), or names of models.
    """

    kind: str
    requests: int
    judged: int
    asked: float | str
    got: float | str
    note: str


@dataclass(slots=True, frozen=True)
class Mismatches:
    """The differences of a run; it is false when there are none."""

    found: tuple[Mismatch, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def notes(self) -> list[str]:
        return [mismatch.note for mismatch in self.found]

    def as_dict(self) -> list[dict[str, Any]]:
        """Return the differences for JSON."""
        return [
            {"kind": one.kind, "requests": one.requests, "judged": one.judged, "asked": one.asked, "got": one.got}
            for one in self.found
        ]


@dataclass(slots=True)
class RunResult:
    """A finished or interrupted run: records in order of completion and what the reports need to describe them.

    start_unix_s: wall-clock time at run clock `start_s`. speed: every time in records is multiplied by it in reports,
    because the cluster and all waits ran that much faster than life.
    client_cpu_s: None: not known, as in a run that was read back after it had been cut off. client_cost: read back likewise.
    repeats: what conversations that repeat, or are too few, mean for the figures.
    mismatches: differences between what was asked of the endpoint and what came.
    distortion: what the servers' own pace did to the figures, if they tell.
    cache: the verdict on the endpoint's prefix cache, where it was asked for.
    long_schedule: the note on a schedule that lasts for days, which is among `notes`, too.
    replay: of a scenario's run, counts that the records do not have. submission: the verdict of its rules.
    window: how long all slots had work.
    workers: who sent it, when that was more than one process.
    version: of the product that made the run; empty: this one.
    deployment: what served it, each pool of instances by names of settings, as far as it is known.
    """

    records: list[Record]
    branch_stats: BranchStats | None
    start_s: float
    end_s: float
    start_unix_s: float
    cancelled: bool = False
    cancel_reason: str | None = None
    speed: float = 1.0
    model: str = ""
    url: str = ""
    endpoint: str = "chat"
    streaming: bool = True
    workload_format: str = ""
    workload_path: str = ""
    inputs: list[dict[str, Any]] = field(default_factory=list)  # inputs.json: [{"session_id", "payloads"}]
    options: Mapping[str, Any] = field(default_factory=dict)  # the run's settings, JSON-able, for input_config
    client_cpu_s: float | None = 0.0
    client_lag_s: tuple[float, ...] = ()  # event-loop lateness samples: says whether the client was the bottleneck
    client_cost: ClientCost | None = None
    notes: list[str] = field(default_factory=list)  # warnings the reports must repeat
    workers: list[WorkerResult] = field(default_factory=list)
    repeats: Repeats | None = None
    mismatches: Mismatches | None = None
    distortion: Distortion | None = None
    cache: CacheVerdict | None = None
    long_schedule: str | None = None
    replay: ReplayCounts | None = None
    window: PerformanceWindow | None = None
    submission: Submission | None = None
    version: str = ""
    deployment: list[dict[str, Any]] = field(default_factory=list)

    @property
    def judged_notes(self) -> list[str]:
        """The notes of cache, mismatches, repeats and distortion, which are among `notes`, too."""
        judged = (self.cache, self.mismatches, self.repeats, self.distortion)
        return [note for one in judged if one is not None for note in one.notes]


# Where each count may stand, the last place that has it winning.
_PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("usage_prompt_tokens", ("prompt_tokens",)),
    ("usage_completion_tokens", ("completion_tokens",)),
    ("usage_total_tokens", ("total_tokens",)),
    ("usage_reasoning_tokens", ("completion_tokens_details", "reasoning_tokens")),
    ("usage_prompt_cache_read_tokens", ("cache_read_input_tokens",)),
    ("usage_prompt_cache_read_tokens", ("prompt_tokens_details", "cached_tokens")),
    ("usage_prompt_cache_write_tokens", ("cache_creation_input_tokens",)),
    ("usage_prompt_cache_miss_tokens", ("prompt_cache_miss_tokens",)),
    ("usage_prompt_audio_tokens", ("prompt_tokens_details", "audio_tokens")),
    ("usage_completion_audio_tokens", ("completion_tokens_details", "audio_tokens")),
    ("usage_accepted_prediction_tokens", ("completion_tokens_details", "accepted_prediction_tokens")),
    ("usage_rejected_prediction_tokens", ("completion_tokens_details", "rejected_prediction_tokens")),
)
MOST_TOKENS = 10**9  # of one request
USAGE_TAGS = tuple(dict.fromkeys(tag for tag, _ in _PLACES))
_TOP = {path[0]: tag for tag, path in _PLACES if len(path) == 1}
_NESTED = {group: {path[1]: tag for tag, path in _PLACES if path[0] == group} for _, (group, *rest) in _PLACES if rest}


def usage_counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a usage object; an endpoint may send null for what it lacks."""
    counts: dict[str, int] = {}
    for key, value in usage.items():
        if key in _TOP and is_count(value):
            counts[_TOP[key]] = int(value)
    for group, tags in _NESTED.items():
        details = usage.get(group)
        if isinstance(details, Mapping):
            for key, value in details.items():
                if key in tags and is_count(value):
                    counts[tags[key]] = int(value)
    return counts


def absurd_count(usage: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return a count that no endpoint can mean, with its name; None if there is none.

    Counts are whole numbers from 0 to MOST_TOKENS. A sum with any other would hide all others; a sum without it would lack
    that request.
    """
    for group, names in (usage, _TOP), *[(usage.get(name), tags) for name, tags in _NESTED.items()]:
        for name, value in group.items() if isinstance(group, Mapping) else ():
            if name in names and value is not None and not is_count(value):
                return name, value
    return None


def is_count(value: Any) -> bool:
    """Return whether a value can be a number of tokens."""
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= MOST_TOKENS


def usage_of(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a usage object with these counts, by tag: the inverse of usage_counts."""
    usage: dict[str, Any] = {}
    for tag, path in reversed(_PLACES):  # so that of two places the one that chat completions use remains
        if tag in counts and not any(tag == other and _holds(usage, place) for other, place in _PLACES):
            target = usage
            for key in path[:-1]:
                target = target.setdefault(key, {})
            target[path[-1]] = counts[tag]
    return usage


def _holds(usage: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    found: Any = usage
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found is not None

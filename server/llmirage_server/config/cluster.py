"""A whole cluster: pools of instances, what joins them, what happens to them, and the face it shows."""

from __future__ import annotations

import dataclasses

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from llmirage_server.cluster.routers import ROUTERS, router_problem
from llmirage_server.cluster.routers.gateway_queue import Ordering
from llmirage_server.config.instance import GROUPS, MOST_INSTANCES, InstanceSettings
from llmirage_shared.extensions import is_extension
from llmirage_shared.settings import About, at_call, did_you_mean, make_plain, settings_of, under

AcceptModels = Literal["any", "served"]
UnknownFields = Literal["refuse", "ignore"]
DialectChoice = Literal["openai", "vllm", "sglang", "trtllm"]
ReplayTiming = Literal["recorded", "cluster", "none"]
OnMiss = Literal["error", "generated", "record"]
TraceFormat = Literal["dynamo.request.trace.v1", "agentic_mooncake", "weka", "otel", "perfetto"]
Role = Literal["both", "prefill", "decode"]
OnCrash = Literal["reroute", "fail"]
Action = Literal["crash", "stop", "start"]
_time, _cluster, _scaling, _replies, _recordings, _access, _faults = map(under, GROUPS[5:])
_transfer, _events = under("kv_transfer"), under("events")  # blocks of cluster files


_REPLIES = ("prose", "echo")


def _replies_problem(name: str) -> str | None:
    if name in _REPLIES or is_extension("reply source", name):
        return None
    return f"must be one of {', '.join(_REPLIES)}, or module:function; not {name!r}{did_you_mean(name, _REPLIES)}"


def read_speed(value: Any) -> float:
    """Return a factor above 0, or infinity for `max`. Raises ValueError."""
    try:
        speed = math.inf if value == "max" else math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        speed = math.nan
    if problem := _speed_problem(speed):
        raise ValueError(problem.replace("nan", repr(value)))
    return speed


def _speed_problem(speed: float) -> str | None:
    return None if speed > 0 else f"must be above 0, or max, not {speed:g}"


def _key_problem(keys: tuple[str, ...]) -> str | None:
    odd = [key for key in keys if not key or not key.isascii() or not key.isprintable() or " " in key]
    return "must be of visible ASCII characters" if odd else None


def _origin_problem(origins: tuple[str, ...]) -> str | None:
    odd = [origin for origin in origins if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin)]
    return f"{odd[0]!r} is no origin such as https://app.example:3000, and not *" if odd else None


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def _regex_problem(written: tuple[str, ...]) -> str | None:
    for text in written:
        try:
            at_call("llmirage_server.replies.patterns:compiled")(text)
        except ValueError as error:
            return f"{text!r} {error}"
    return None


def url_problem(url: str) -> str | None:
    """Return the end of a sentence about a text that is no address of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"must be an address such as https://api.openai.com/v1, not {url!r}"
    return "must be without a user and password: give the key as upstream_key" if "@" in parts.netloc else None


def _priorities(form: str, value: Any) -> tuple[tuple[str, int], ...]:
    """Return each NAME:PRIORITY as a pair. form: for the message. Raises ValueError."""
    parts = value.items() if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
    pairs = [
        pair
        for part in parts
        for pair in ([one.strip().rpartition(":")[::2] for one in part.split(",")] if isinstance(part, str) else [part])
    ]
    try:
        found = [(str(name), int(priority)) for name, priority in pairs]
    except (TypeError, ValueError):
        found = [("", 0)]
    names = Counter(name for name, _ in found)
    if "" in names:
        raise ValueError(f"{value!r} is not {form},..., such as interactive:0,batch:5")
    if twice := [name for name, times in names.items() if times > 1]:
        raise ValueError(f"{twice[0]!r} has several priorities in {value!r}; give it one")
    return tuple(found)


_SYNONYMS = {  # what people call the two kinds of link
    **dict.fromkeys(("nvlink", "infinity_fabric", "xgmi", "ici"), "gpu_link"),
    **dict.fromkeys(("rdma", "infiniband", "roce"), "network"),
}


def _link(value: Any) -> Any:
    return _SYNONYMS.get(value.lower(), value) if isinstance(value, str) else value


def _overlap(value: Any) -> Any:
    return {True: "layers", False: "none"}.get(value, value) if isinstance(value, bool) else value


@dataclass(frozen=True, kw_only=True)
class PoolConfig(InstanceSettings):
    """Equal instances under one name. Raises ConfigError."""

    name: str
    role: Role = "both"

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.name:
            yield "name must not be empty"
        if self.role not in (roles := get_args(Role)):
            yield f"role must be one of {', '.join(roles)}; not {self.role!r}{did_you_mean(self.role, roles)}"
        other = {"prefill": "scale_on_itl_ms", "decode": "scale_on_ttft_ms"}.get(self.role)
        if other and getattr(self, other) is not None:
            yield f"{other} is not for role {self.role}, which has none of its own"
        if self.fixed_times and self.role != "both":
            yield f"fixed times (ttft_ms, itl_ms) and role {self.role} exclude each other: use role both, or no fixed times"


@dataclass(frozen=True, kw_only=True)
class KvTransferConfig:
    """The path of KV from a prefill instance to a decode instance."""

    link: Literal["gpu_link", "network"] = _transfer(
        "network", "The link between the GPUs of a node, or the network.", read=_link
    )
    bandwidth_gb_per_s: float | None = _transfer(
        None, "Bandwidth between two instances, one direction.", unset="that of the link", above=0
    )
    latency_us: float | None = _transfer(None, "Latency of a transfer.", unset="that of the link", least=0)
    overlap: Literal["layers", "chunks", "none"] | None = _transfer(
        None, "What is sent while the rest of a prompt is computed.", unset="as the engine does", read=_overlap
    )
    handoff_ms: float | None = _transfer(
        None, "Time from prefill to decode beside the transfer.", unset="the engine's", least=0
    )
    first_token: Literal["decode", "prefill"] = _transfer("decode", "Which instance shows the first token.")
    timeout_s: float | None = _transfer(
        None, "How long KV is kept for a request of an outside router, and waited for.", unset="the engine's", above=0
    )
    load_failure: Literal["fail", "recompute"] = _transfer(
        "fail", "What becomes of a request of an outside router whose KV is not there."
    )
    mode: Literal["prefill", "decode", "both"] | None = _transfer(
        None, "The role of a server without pools that is one engine of several processes.", unset="none"
    )

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """Something happens to instances at a moment of the cluster's time.

    pool and instance: an instance of a pool by its number there, a whole pool, or an instance of the whole cluster.
    """

    at_s: float = _events(MISSING, "When it happens.", least=0)
    action: Action = _events(MISSING, "What happens.")
    pool: str | None = _events(None, "The pool it happens to.")
    instance: int | None = _events(None, "The instance it happens to.")
    restart_after_s: float | None = _events(
        None, "Time until a crashed instance restarts.", unset="it does not restart", least=0
    )

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(InstanceSettings):
    """Everything that can be configured. Without `pools` there is one, of the settings here. Raises ConfigError."""

    router: str = _cluster(
        "prefix",
        f"Routing policy: {', '.join(ROUTERS)}, or your own module:function.",
        check=router_problem,
        usual=True,
        names=lambda: ROUTERS,
    )
    session_ttl_s: float | None = _cluster(
        None,
        "Time since its last request after which the routers session and llm-d forget a session's instance.",
        metavar="S",
        unset="never",
        above=0,
    )
    class_priorities: tuple[tuple[str, int], ...] = _cluster(
        (),
        "Priorities of service classes, which X-Gateway-Inference-Objective names: interactive:0,batch:5; lower is served "
        "first by engines with schedule_policy=priority, and a priority in the body wins.",
        metavar="CLASS:PRIORITY,...",
        read=partial(_priorities, "CLASS:PRIORITY"),
        unset="none",
    )
    gateway_queue: bool = _cluster(
        False, "Requests wait at the router while instances are saturated, as in the Gateway API's flow control."
    )
    objective_priorities: tuple[tuple[str, int], ...] = _cluster(
        (),
        "Priorities in the gateway's queue of what X-Gateway-Inference-Objective names: chat:10,batch:-1; higher goes "
        "first, below 0 is sheddable.",
        metavar="OBJECTIVE:PRIORITY,...",
        read=partial(_priorities, "OBJECTIVE:PRIORITY"),
        unset="0",
    )
    gateway_queue_depth: int = _cluster(5, "Waiting requests with which an instance is saturated.", least=1)
    gateway_kv_utilization: float = _cluster(
        0.8, "Share of its KV memory in use with which an instance is saturated.", above=0, most=1
    )
    gateway_request_ttl_s: float = _cluster(
        60.0, "Time in the gateway's queue until a request is evicted (429, or 503 without an instance); 0: none.", least=0
    )
    gateway_max_requests: int = _cluster(
        5000, "Requests of one priority that the gateway's queue holds; one more is rejected (429).", least=1
    )
    gateway_max_bytes: int = _cluster(
        1_000_000_000, "Bytes of requests of one priority that the gateway's queue holds.", least=1
    )
    gateway_sheddable_max_requests: int | None = _cluster(
        None, "The same number for priorities below 0; 0: refused while instances are saturated.", unset="the same", least=0
    )
    gateway_ordering: Ordering = _cluster(
        "fcfs", "Order of one tenant's requests in the gateway's queue: fcfs, or slo-deadline, by x-llm-d-slo-ttft-ms."
    )
    max_gpu_budget: int | None = _scaling(
        None, "GPUs of all instances together, beyond which autoscaling starts none.", unset="no limit", least=1
    )
    on_crash: OnCrash = _cluster(
        "reroute", "What happens to the requests of an instance that crashes (`events` in a cluster file)."
    )
    kv_store_gib: float = _cluster(0.0, "A KV store that all instances share, below the tiers of their own.", least=0)
    kv_store_gb_per_s: float | None = _cluster(
        None,
        "Bandwidth of the KV store, in each direction, for all instances together.",
        unset="that of one network card",
        above=0,
    )
    speed: float = _time(  # cluster seconds in a second; inf never waits
        1.0,
        "Run the cluster N times faster than real time; max: without waiting.",
        metavar="N|max",
        read=read_speed,
        check=_speed_problem,
        usual=True,
    )
    accept_models: AcceptModels = _replies(
        "any",
        "Model names that requests may use: any (the first served model answers for an unknown name), or the served ones.",
    )
    tokenizer: str | None = _replies(
        None, "Folder or Hugging Face name of a tokenizer.", unset="the built-in one", flag="serve"
    )
    replies: str = _replies(
        "prose",
        "What is said: prose, echo (the user's own words), or your own module:function.",
        flag="serve",
        check=_replies_problem,
        names=lambda: _REPLIES,
    )
    script: tuple[str, ...] = _replies(
        (),
        "Scripted replies, in YAML or JSON; may be repeated (docs/scripts.md).",
        metavar="FILE",
        unset="none",
        usual="serve",
        flag="serve simulate",
    )
    exact_length: bool = _replies(
        False,
        "Text has exactly max_tokens tokens, as with ignore_eos; off: it ends by itself, at the latest there.",
        flag="serve",
    )
    reply_tokens: int = _replies(
        156, "Median length of text that ends by itself, in tokens; answers to a few words have a fifth.", least=1
    )
    dialect: DialectChoice | None = _replies(
        None,
        "Whose API to speak where servers differ: refusals, errors, events of streams (docs/dialects.md).",
        unset="the named engine's; openai without --engine",
        flag="serve",
    )
    lenient: bool = _replies(
        False, "In dialect openai, too, take what engines take, and count cached tokens as they do (docs/dialects.md)."
    )
    enable_cache_report: bool = _replies(
        True,
        "Say in the usage of chat and completions how many prompt tokens were cached.",
        aliases=("enable_prompt_tokens_details",),
        carried=True,
    )
    unknown_fields: UnknownFields | None = _replies(
        None,
        "Request fields that neither the OpenAI API nor an engine documents.",
        unset="refuse in dialect openai unless lenient, else ignore",
    )
    state: str | None = _replies(
        None,
        "SQLite file in which responses, conversations and stored completions survive a restart.",
        metavar="FILE",
        unset="kept in memory",
        flag="serve",
    )
    state_mib: int | None = _replies(
        None,
        "Size of what is kept of responses, conversations and completions; the oldest go.",
        unset="16 in memory, 1024 in a file",
        least=1,
    )
    files_mib: int | None = _replies(
        None,
        "Size of uploaded files and of what batches write, together; more is refused.",
        unset="256 in a temporary file, 1024 in the file of --state",
        least=1,
    )
    response_ttl_s: float | None = _replies(
        None,
        "Time for which responses, conversations and completions are kept.",
        aliases=("response_ttl",),
        unset="30 days, as OpenAI keeps them",
        above=0,
    )
    seed: int = _replies(0, "Seed of replies and routing.", carried=True)
    replay: str | None = _recordings(
        None,
        "Answer requests with the recordings of this folder (docs/recordings.md).",
        metavar="DIR",
        unset="replies are generated",
        usual=True,
    )
    replay_timing: ReplayTiming = _recordings(
        "recorded", "When replayed events leave: at their recorded times, as the cluster makes their tokens, or at once."
    )
    replay_match: tuple[str, ...] = _recordings(
        (),
        "A field of the body that must be as recorded; may be repeated.",
        metavar="FIELD",
        unset="the model, what is said, tools, and the form of the answer",
    )
    replay_ignore: tuple[str, ...] = _recordings(
        (),
        "Text that need not be as recorded; may be repeated.",
        metavar="REGEX",
        unset="dates and UUIDs in system prompts",
        check=_regex_problem,
    )
    on_miss: OnMiss = _recordings(
        "error", "What answers a request without a recording: an error, a generated reply, or --upstream, recorded anew."
    )
    upstream: str | None = _recordings(
        None, "Server that answers what is not answered here.", metavar="URL", unset="none", check=url_problem, usual=True
    )
    upstream_key: str | None = _recordings(
        None,
        "Key for the upstream, in place of those that requests bring.",
        metavar="KEY",
        unset="the request's",
        check=lambda key: _key_problem((key,)),
    )
    trace_out: str | None = _recordings(
        None,
        "Write the requests that were served to this new file or folder, or a collector of OTLP (docs/traces.md).",
        metavar="FILE|DIR|URL",
        unset="none",
        flag="serve",
    )
    trace_format: TraceFormat | None = _recordings(
        None,
        "Format of --trace-out.",
        unset="by its ending: .mooncake.jsonl, .otlp.jsonl, .json (Perfetto), other .jsonl (Dynamo); weka for a folder",
    )
    trace_block_size: int | None = _recordings(
        None, "Tokens of a hash in --trace-out.", unset="those of a block of the KV cache, at least 16", least=1, most=65536
    )
    record_workload: str | None = _recordings(
        None,
        "Write the requests that were served to this new file, as a workload of messages that run and simulate replay.",
        metavar="FILE",
        unset="none",
    )
    sent_stamps: str | None = _recordings(
        None,
        "Write to this new file when each token of a stream was sent, for `llmirage verify-client` (docs/traces.md).",
        metavar="FILE",
        unset="none",
    )
    api_key: tuple[str, ...] = _access(
        (),
        "Refuse requests without this key (401); may be repeated.",
        metavar="KEY",
        hidden=("api_keys",),
        unset="no key is needed",
        check=_key_problem,
        usual=True,
    )
    api_key_file: str | None = _access(None, "File of such keys, one a line.", metavar="FILE", unset="none")
    open_admin: bool = _access(
        False,
        "Let other machines change the server without a key (/llmirage/..., /sleep, caches); off: this machine only.",
        switch=True,
    )
    cors: tuple[str, ...] = _access(
        (),
        "Pages of this origin in a browser may call and read; may be repeated; `*`: any.",
        metavar="ORIGIN",
        unset="those of this machine",
        check=_origin_problem,
    )
    max_body_mib: int = _access(
        32, "Largest body of a request, decompressed; larger ones are refused (413).", aliases=("max_body",), least=1
    )
    unread_mib: int = _access(
        256,
        "What requests that are not yet planned, and those over 1 MiB, may hold together; those without room are refused "
        "(503). Requests of more than 64 KiB have half of it, three eighths while they come.",
        least=1,
    )
    websocket_limit_s: float = _access(
        3600.0,
        "How long a WebSocket connection may last; 0: they are refused with 426, at which clients use HTTP.",
        aliases=("websocket_limit",),
        least=0,
        most=366 * 86_400,
    )
    rate_limit: int | None = _access(None, "Requests per minute and key; more are refused (429).", least=1, unset="no limit")
    token_limit: int | None = _access(
        None, "Tokens per minute and key, prompt tokens plus max_tokens; more are refused (429).", least=1, unset="no limit"
    )
    faults: str | None = _faults(
        None,
        "YAML file of faults: errors, delays and broken replies on purpose (docs/faults.md).",
        metavar="FILE",
        unset="none",
        usual=True,
    )
    allow_fault_header: bool = _faults(
        False, "Let a request inject a fault into its own reply with the header X-Llmirage-Fault.", switch=True
    )

    pools: tuple[PoolConfig, ...] = ()
    kv_transfer: KvTransferConfig | None = None
    events: tuple[EventConfig, ...] = ()

    @cached_property
    def all_pools(self) -> tuple[PoolConfig, ...]:
        """The pools there are: those given, or the one that this configuration describes by itself."""
        return self.pools or (PoolConfig(name=DEFAULT_POOL, **instance_settings(self)),)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._pool_problems()
        yield from self._event_problems()
        if self.trace_out is None:
            given = [name for name in ("trace_format", "trace_block_size") if getattr(self, name) is not None]
            yield from (f"{name} needs --trace-out" for name in given)
        if self.on_miss == "record" and (self.replay is None or self.upstream is None):
            yield "on_miss record needs --replay, the folder for new recordings, and --upstream, which answers"

    def _pool_problems(self) -> Iterator[str]:
        names = [pool.name for pool in self.pools]
        yield from (f"pools: two of them are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1}))
        if (total := sum(pool.instances for pool in self.pools)) > MOST_INSTANCES:
            yield f"pools have {total:,} instances together, but one process imitates at most {MOST_INSTANCES:,}"
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            there = {pool.model for pool in self.pools if pool.role == other}
            for pool in self.pools:
                if pool.role == role and pool.model not in there:
                    yield f"pool {pool.name!r} has role {role}, but no pool of role {other} serves {pool.model}"
        link, roles = self.kv_transfer, any(pool.role == "prefill" for pool in self.pools)
        if link is not None and not roles and link.mode is None:
            yield (
                "kv_transfer is between pools of role prefill and decode, and there are none; in a process that is one of "
                "several engines give its mode"
            )
        if link is not None and roles and link.mode is not None:
            yield "kv_transfer.mode has no effect here: the pools have roles"
        if link is not None and link.link == "gpu_link" and None not in (link.bandwidth_gb_per_s, link.latency_us):
            yield "kv_transfer.link has no effect here: bandwidth_gb_per_s and latency_us say all that it stands for"

    def _event_problems(self) -> Iterator[str]:
        sizes = {pool.name: pool.instances for pool in self.pools}
        total = sum(sizes.values()) or self.instances
        for event in self.events:
            there = total
            if event.pool is not None:
                if event.pool not in sizes:
                    yield f"events: there is no pool {event.pool!r}{did_you_mean(event.pool, sizes)}"
                    continue
                there = sizes[event.pool]
            elif event.instance is None:
                yield "events: each needs the instance or the pool it happens to"
            if event.instance is not None and not 0 <= event.instance < there:
                yield f"events: there is no instance {event.instance}: the last of {there} is {there - 1}"
            if not 0 <= event.at_s < math.inf:
                yield f"events: at_s must be a number of seconds from 0 up, not {event.at_s:g}"
            if event.restart_after_s is not None and event.action != "crash":
                yield "events: restart_after_s belongs to crash; after a stop, give a start of its own"


DEFAULT_POOL = "default"


def instance_settings(settings: InstanceSettings) -> dict[str, Any]:
    """Return the settings of instances alone, by name."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(InstanceSettings)}


BLOCKS = ("pools", "events", "kv_transfer", "kv_offload")  # of cluster files, beside the settings
ELSEWHERE = {
    "*": 'arguments of an engine\'s own server go as they stand into --engine-args "..."'
}  # flags that resemble none here
# All settings that a flag or a line of a cluster file can give, by name.
SETTINGS: Mapping[str, About] = settings_of(ClusterConfig)
ALIASES: Mapping[str, str] = {alias: name for name, about in SETTINGS.items() for alias in about.other_names}
INSTANCE_SETTINGS = frozenset(field.name for field in dataclasses.fields(InstanceSettings))


def canonical_name(key: str) -> str | None:
    """Return the setting that a key means; dashes and underscores are the same. None for an unknown key."""
    name = key.replace("-", "_").lower()
    name = ALIASES.get(name, name)
    return name if name in SETTINGS else None

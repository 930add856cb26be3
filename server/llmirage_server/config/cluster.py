"""A whole cluster: pools of instances, what joins them, what happens to them, and the face it shows."""

# ruff: noqa: RUF009  `setting` is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from llmirage_server.cluster.routers import ROUTERS
from llmirage_server.config.instance import ACCESS, CLUSTER, MOST_INSTANCES, REPLIES, TIME, InstanceSettings
from llmirage_server.config.settings import did_you_mean, setting
from llmirage_shared.plain_numbers import make_plain

AcceptModels = Literal["served", "catalogue", "any"]
UnknownFields = Literal["refuse", "ignore"]
ReplyKind = Literal["prose", "echo"]
Role = Literal["both", "prefill", "decode"]
OnCrash = Literal["reroute", "fail"]
Action = Literal["crash", "stop", "start"]


def _router_problem(name: str) -> str | None:
    if name in ROUTERS or ":" in name:
        return None
    return f"must be one of {', '.join(ROUTERS)}, or module:function; not {name!r}{did_you_mean(name, ROUTERS)}"


def _speed_problem(speed: float) -> str | None:
    return None if speed > 0 else f"must be above 0, or max, not {speed:g}"


def _key_problem(keys: tuple[str, ...]) -> str | None:
    odd = [key for key in keys if not key or not key.isascii() or not key.isprintable() or " " in key]
    return "must be of visible ASCII characters" if odd else None


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
        if self.fixed_times and self.role != "both":
            yield f"fixed times (ttft_ms, itl_ms) and role {self.role} exclude each other: use role both, or the physics"


@dataclass(frozen=True, kw_only=True)
class KvTransferConfig:
    """How KV travels from a prefill instance to a decode instance.

    Without a bandwidth it is that of `link` for the GPUs of an instance: `gpu_link` (NVLink and its like) or `network`.
    """

    link: Literal["gpu_link", "network"] = "network"
    bandwidth_gb_per_s: float | None = None  # between two instances, one direction
    latency_us: float | None = None  # None: the link's
    overlap: bool = True  # layers leave while later layers are still computed

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """Something happens to instances at a moment of the cluster's time.

    pool and instance: an instance of a pool by its number there, a whole pool, or an instance of the whole cluster.
    """

    at_s: float
    action: Action
    pool: str | None = None
    instance: int | None = None
    restart_after_s: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(InstanceSettings):
    """Everything that can be configured. Without `pools` there is one, of the settings here. Raises ConfigError."""

    router: str = setting(
        "prefix",
        CLUSTER,
        f"Which instance a request goes to: {', '.join(ROUTERS)}, or module:function of your own.",
        metavar="NAME",
        check=_router_problem,
    )
    on_crash: OnCrash = setting(
        "reroute",
        CLUSTER,
        "What becomes of a lost instance's requests (a cluster file's `events` lose them).",
        choices=("reroute", "fail"),
    )
    speed: float = setting(  # cluster seconds in a second; inf never waits
        1.0,
        TIME,
        "Run the cluster N times faster than life; max never waits.",
        metavar="N|max",
        check=_speed_problem,
    )
    accept_models: AcceptModels = setting(
        "catalogue",
        REPLIES,
        "Names that requests may use: those served, all of the catalogue, or any.",
        choices=get_args(AcceptModels),
    )
    tokenizer: str | None = setting(
        None,
        REPLIES,
        "Folder or hub name of a Hugging Face tokenizer.",
        metavar="NAME",
        unset="the one in the package",
    )
    replies: ReplyKind = setting(
        "prose", REPLIES, "What is said: prose, or the user's own words.", choices=get_args(ReplyKind)
    )
    natural_stop: bool = setting(False, REPLIES, "Let replies end before max_tokens, as models do; off: exactly max_tokens.")
    reply_tokens: int = setting(
        156, REPLIES, "Median length of a reply that ends by itself, in tokens.", metavar="N", least=1
    )
    unknown_fields: UnknownFields = setting(
        "refuse",
        REPLIES,
        "Fields of requests that neither the API nor any engine documents.",
        choices=get_args(UnknownFields),
    )
    state: str | None = setting(
        None,
        REPLIES,
        "SQLite file that keeps responses, conversations and stored completions over a restart.",
        metavar="FILE",
        unset="in memory",
    )
    seed: int = setting(0, REPLIES, "The same seed gives the same replies and the same routing.", metavar="N")
    api_key: tuple[str, ...] = setting(
        (),
        ACCESS,
        "Refuse requests without this key (401); may be given several times.",
        metavar="KEY",
        aliases=("api_keys",),
        unset="all requests are served",
        check=_key_problem,
    )
    rate_limit: int | None = setting(
        None, ACCESS, "Requests a minute, of each key; more are refused (429).", metavar="N", least=1, unset="no limit"
    )
    token_limit: int | None = setting(
        None,
        ACCESS,
        "Tokens a minute, of each key: prompts and what they ask for; more are refused (429).",
        metavar="N",
        least=1,
        unset="no limit",
    )

    pools: tuple[PoolConfig, ...] = ()
    kv_transfer: KvTransferConfig | None = None
    events: tuple[EventConfig, ...] = ()

    @property
    def all_pools(self) -> tuple[PoolConfig, ...]:
        """The pools there are: those given, or the one that this configuration describes by itself."""
        return self.pools or (PoolConfig(name=DEFAULT_POOL, **instance_settings(self)),)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._pool_problems()
        yield from self._event_problems()

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
        if self.kv_transfer is not None and not any(pool.role == "prefill" for pool in self.pools):
            yield "kv_transfer is between pools of role prefill and decode, and there are none"

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
    """The settings of instances alone, by name."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(InstanceSettings)}

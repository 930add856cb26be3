"""Cluster files: YAML with the names of `ClusterConfig`; every problem is told with its line, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llmirage_server.config import (
    ALIASES,
    INSTANCE_SETTINGS,
    SETTINGS,
    ClusterConfig,
    ConfigError,
    EventConfig,
    KvTransferConfig,
    PoolConfig,
    canonical_name,
    did_you_mean,
)
from llmirage_server.config.cluster import BLOCKS
from llmirage_server.config.ineffective import check_effect
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_shared.settings import convert_to, settings_of
from llmirage_shared.yaml_lines import Entry, YamlNode, read_mapping

_CATALOGUES: Mapping[str, Callable[[str], object]] = {  # that have the names of settings
    "model": find_model,
    "draft_model": find_model,
    "gpu": find_gpu,
    "engine": find_engine,
}
BUNDLED = "bundled:"
BUNDLED_DIRECTORY = Path(__file__).parents[1] / "clusters"


def make_config(cluster_file: str | None, flags: Mapping[str, Any]) -> ClusterConfig:
    """Return the configuration of a file (or none) and of the given flags, which win, in every pool.

    cluster_file: a path, or bundled:NAME. Flags that are None or () were not given. Raises ConfigError with all problems,
    settings without effect among them.
    """
    configs = make_configs(cluster_file, flags)
    check_effect(configs)
    return configs[0]


def make_configs(cluster_file: str | None, flags: Mapping[str, Any]) -> tuple[ClusterConfig, ...]:
    """Return what `make_config` does and, if possible, the file's own configuration; effects of settings are not checked.

    Raises ConfigError.
    """
    problems: list[str] = []
    settings: dict[str, Any] = {}
    if cluster_file is not None:
        try:
            settings = read_cluster_file(cluster_file)
        except ConfigError as error:
            problems += error.problems
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        config = combined(settings, given)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config, *alone(settings)


def alone(settings: Mapping[str, Any]) -> tuple[ClusterConfig, ...]:
    """Return the configuration of a file's settings without others; nothing where it needs others."""
    try:
        return (combined(settings, {}),) if settings else ()
    except ConfigError:
        return ()


def combined(
    settings: Mapping[str, Any], given: Mapping[str, Any], of_pools: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> ClusterConfig:
    """Return the configuration of a file's settings, of others that win in every pool, and of some that win in one pool.

    of_pools: by the pool's name. Raises ConfigError with all problems.
    """
    defaults = {name: value for name, value in settings.items() if name in INSTANCE_SETTINGS}
    mine = {name: value for name, value in given.items() if name in INSTANCE_SETTINGS}
    blocks = settings.get("pools", ())
    unknown = set(of_pools) - {block["name"] for block in blocks}
    if unknown:
        there = f"there are {', '.join(block['name'] for block in blocks)}" if blocks else "the cluster has no pools"
        raise ConfigError([f"there is no pool {name!r}: {there}" for name in sorted(unknown)])
    pools = tuple(PoolConfig(**(defaults | block | mine | of_pools.get(block["name"], {}))) for block in blocks)
    return ClusterConfig(**({**settings, **given} | {"pools": pools}))


def read_settings(path: str, entries: Iterable[Entry]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings among lines of another kind of file, and what is wrong with them; see read_cluster_file."""
    reader = _Reader(path)
    return reader.settings(entries, "", [*SETTINGS, *_BLOCKS]), reader.problems


def is_setting(key: str) -> bool:
    """Return if a cluster file knows the key, under this or another name."""
    name = key.replace("-", "_").lower()
    return (canonical_name(name) or name) in (*SETTINGS, *_BLOCKS)


def cluster_path(name: str) -> str:
    """Return the path of a cluster file; bundled:NAME is one of those in the package. Raises ConfigError."""
    if not name.startswith(BUNDLED):
        return name
    stem = name.removeprefix(BUNDLED).removesuffix(".yaml")
    known = sorted(path.stem for path in BUNDLED_DIRECTORY.glob("*.yaml"))
    if stem not in known:
        raise ConfigError([f"no cluster file {stem!r} is bundled{did_you_mean(stem, known)}; there are {', '.join(known)}"])
    return str(BUNDLED_DIRECTORY / f"{stem}.yaml")


def read_cluster_file(name: str) -> dict[str, Any]:
    """Return the settings of a file by field name, converted and each checked by itself; pools as dictionaries.

    Raises ConfigError with `file:line: key: problem` for each unknown key, repeated key, wrong type or bad value.
    """
    path = cluster_path(name)
    reader = _Reader(path)
    settings = reader.settings(read_mapping(path), "", [*SETTINGS, *_BLOCKS])
    if reader.problems:
        raise ConfigError(reader.problems)
    return settings


class _Reader:
    """Reads one file and collects what is wrong with it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.problems: list[str] = []

    def settings(self, entries: Iterable[Entry], place: str, known: list[str]) -> dict[str, Any]:
        """Return the settings of the whole file, or of a pool. place: text before a key, `pools[0].` for instance."""
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for entry in entries:
            key = entry.key.replace("-", "_").lower()
            field = canonical_name(key) or key
            if field not in known:
                aliases = [alias for alias, meant in ALIASES.items() if meant in known]
                hint = did_you_mean(entry.key, [*known, *aliases]) or f"; known: {', '.join(known)}"
                whole = field in (*SETTINGS, *_BLOCKS)
                self._problem(entry, place, _OF_ALL if whole else f"unknown key{hint}")
            elif field in lines:
                self._problem(entry, place, f"already set in line {lines[field]}")
            else:
                lines[field] = entry.line
                self._read(entry, field, place, values)
        return values

    def _read(self, entry: Entry, field: str, place: str, values: dict[str, Any]) -> None:
        if field in _BLOCKS:
            _BLOCKS[field](self, entry, place, values)
            return
        try:
            if field in ("name", "role"):
                value = convert_to((str,), entry.node.value)
                PoolConfig(**({"name": "pool"} | {field: value}))
            else:
                value = SETTINGS[field].convert(entry.node.value)
                if field in _CATALOGUES and value is not None:
                    _CATALOGUES[field](value)
            values[field] = value
        except ConfigError as error:
            for problem in error.problems:
                self._problem(entry, place, problem)
        except ValueError as error:
            self._problem(entry, place, str(error))

    def pools(self, entry: Entry, place: str, values: dict[str, Any]) -> None:
        known = ["name", "role", *(name for name in SETTINGS if name in INSTANCE_SETTINGS), "kv_offload"]
        pools = []
        for i, item in enumerate(self._items(entry, "pools, each a mapping of `key: value` lines after a dash")):
            pool = self.settings(item.entries or (), f"pools[{i}].", known)
            if "name" not in pool and not any(line.key == "name" for line in item.entries or ()):
                self.problems.append(f"{self._path}:{item.line}: pools[{i}]: name is missing")
            pools.append(pool)
        values["pools"] = pools

    def events(self, entry: Entry, place: str, values: dict[str, Any]) -> None:
        items = self._items(entry, "events, each a mapping of `key: value` lines after a dash")
        events = [self._block(EventConfig, item, f"events[{i}].") for i, item in enumerate(items)]
        values["events"] = tuple(event for event in events if event is not None)

    def kv_transfer(self, entry: Entry, place: str, values: dict[str, Any]) -> None:
        values["kv_transfer"] = self._block(KvTransferConfig, entry.node, "kv_transfer.")

    def kv_offload(self, entry: Entry, place: str, values: dict[str, Any]) -> None:
        """Tiers by name; `host: {gib: 256}` is another way to write host_kv_gib: 256."""
        for tier in self._entries(entry.node, f"{place}kv_offload", ["host", "disk"]):
            known = ["gib", "gb_per_s"]
            for line in self._entries(tier.node, f"{place}kv_offload.{tier.key}", known):
                field = f"{tier.key}_kv_{line.key}"
                if field in values:
                    self._problem(line, f"{place}kv_offload.{tier.key}.", f"already set as {field}")
                else:
                    self._read(line, field, f"{place}kv_offload.{tier.key}.", values)

    def _block(self, kind: type[Any], node: YamlNode, place: str) -> Any:
        """Return a configuration object from a block; None if something is wrong with it."""
        known = settings_of(kind)
        before = len(self.problems)
        values = {}
        for entry in self._entries(node, place.rstrip("."), list(known)):
            try:
                values[entry.key] = known[entry.key].convert(entry.node.value)
            except ValueError as error:
                self._problem(entry, place, str(error))
        if len(self.problems) > before:
            return None
        if missing := [name for name, about in known.items() if about.required and name not in values]:
            self.problems.append(f"{self._path}:{node.line}: {place.rstrip('.')}: {' and '.join(missing)} missing")
            return None
        return kind(**values)

    def _entries(self, node: YamlNode, place: str, known: list[str]) -> list[Entry]:
        """Return the entries of a block, without unknown and repeated ones."""
        if node.entries is None:
            self.problems.append(f"{self._path}:{node.line}: {place}: must be a block of `key: value` lines")
            return []
        good: dict[str, Entry] = {}
        for entry in node.entries:
            key = entry.key.replace("-", "_").lower()
            if key not in known:
                hint = did_you_mean(key, known) or f"; known: {', '.join(known)}"
                self._problem(entry, f"{place}.", f"unknown key{hint}")
            elif key in good:
                self._problem(entry, f"{place}.", f"already set in line {good[key].line}")
            else:
                good[key] = Entry(key, entry.line, entry.node)
        return list(good.values())

    def _items(self, entry: Entry, what: str) -> list[YamlNode]:
        items = entry.node.items or ()
        if not items or any(item.entries is None for item in items):
            self.problems.append(f"{self._path}:{entry.line}: {entry.key}: must be a list of {what}")
            return []
        return list(items)

    def _problem(self, entry: Entry, place: str, problem: str) -> None:
        self.problems.append(f"{self._path}:{entry.line}: {place}{entry.key}: {problem}")


_BLOCKS: dict[str, Callable[[_Reader, Entry, str, dict[str, Any]], None]] = {name: getattr(_Reader, name) for name in BLOCKS}


_OF_ALL = "is a setting of the whole cluster: it belongs at the top level of the file, not in a pool"

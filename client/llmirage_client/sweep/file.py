"""Study files: what stays the same, what is varied, and the points that follow; every problem with its line, all at once.

    model: llama-3.1-8b
    isl: 2000
    osl: 500
    request_rate: 20
    slo: ttft_p99<500ms
    grid:
      gpu: [h100_sxm, b200_sxm]
      tensor_parallel_size: [1, 2]
    points:
      - {router: round_robin}
      - {router: prefix, name: by prefix}

The points are those of `points`, each with every combination of `grid`. A key is a setting of cluster files, one of
LOAD_SETTINGS, or POOL.SETTING for one pool of a cluster. In `grid`, a block instead of a list gives each value a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from llmirage_client.measure.slo import SloError, parse_slo
from llmirage_client.settings.load import LoadSettings
from llmirage_client.settings.simulation import SimulationSettings, SizingSettings
from llmirage_client.settings.workload import FileSettings, LengthSettings
from llmirage_client.simulator.cluster_settings import (
    NOT_HERE,
    alone,
    canonical_name,
    combined,
    did_you_mean,
    is_setting,
    read_cluster_file,
    read_settings,
    setting_names,
    without_effect,
)
from llmirage_client.simulator.engine import ClusterConfig, ConfigError, Entry, YamlNode, read_mapping
from llmirage_client.workload.distributions import DistributionError, read_distribution
from llmirage_shared.settings import About, instance_of, setting, settings_of
from llmirage_shared.yaml_lines import node_of


class StudySettings:
    """Settings that only study files have."""

    workload: str | None = setting(None, "Study", "The file whose conversations are sent.", study=True)


_KINDS = (StudySettings, FileSettings, LengthSettings, LoadSettings, SizingSettings, SimulationSettings)
_LEAST = {"isl": 1, "osl": 1, "turns": 1, "think_time": 0}  # the least that a distribution may give

LOAD_SETTINGS: Mapping[str, About] = {
    about.study if isinstance(about.study, str) else about.name: about
    for kind in _KINDS
    for about in settings_of(kind).values()
    if about.study
}


def read_load_setting(key: str, value: Any) -> Any:
    """Return the value, checked by itself. Raises ValueError with the end of a sentence."""
    if value is None or value == math.inf:
        raise ValueError(
            "must have a value" if value is None else "must be a number, not inf; infinite loads are not allowed"
        )
    value = LOAD_SETTINGS[key].convert(value)
    try:
        if key in _LEAST:
            read_distribution(value, least=_LEAST[key])
        if key == "slo":
            parse_slo(value)
    except DistributionError as error:
        raise ValueError(str(error)) from None
    except SloError as error:
        raise ValueError("; ".join(error.problems)) from None
    return value


def load_settings(load: Mapping[str, Any]) -> LoadSettings:
    """Return the settings of a load by their names on the command line."""
    given = {LOAD_SETTINGS[key].name: value for key, value in load.items()}
    known = settings_of(LoadSettings)
    values = {name: (value,) if known[name].several else value for name, value in given.items() if name in known}
    return instance_of(LoadSettings, {"random_seed": 0} | values)


MOST_POINTS = 100_000
BUNDLED = "bundled:"
BUNDLED_DIRECTORY = Path(__file__).parent.parent / "bundled" / "studies"
_SERVED = NOT_HERE - {"tokenizer"}
_SPECIAL = ("grid", "points", "name", "cluster")


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """One cluster under one load. varied: what sets it apart, in words. refused: why its cluster cannot be."""

    number: int
    varied: dict[str, str]
    config: ClusterConfig | None
    load: dict[str, Any]
    refused: str = ""

    @property
    def name(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.varied.items()) or "the only point"


@dataclass(frozen=True, slots=True)
class Study:
    """A study: its settings, its points and its objectives."""

    name: str
    points: tuple[StudyPoint, ...]

    @property
    def varied(self) -> list[str]:
        """The names of what is varied, in the file's order."""
        return list(dict.fromkeys(key for point in self.points for key in point.varied))


@dataclass(slots=True)
class _Variant:
    """One varied entry of a point: its lines and its name."""

    entries: list[Entry]
    varied: dict[str, str] = field(default_factory=dict)


def study_path(name: str) -> str:
    """Return the path of a study file; bundled:NAME is one of those in the package. Raises ConfigError."""
    if not name.startswith(BUNDLED):
        return name
    stem = name.removeprefix(BUNDLED).removesuffix(".yaml")
    known = sorted(path.stem for path in BUNDLED_DIRECTORY.glob("*.yaml"))
    if stem not in known:
        raise ConfigError([f"no study {stem!r} is bundled{did_you_mean(stem, known)}; there are {', '.join(known)}"])
    return str(BUNDLED_DIRECTORY / f"{stem}.yaml")


def read_study(given: str | Mapping[str, Any]) -> Study:
    """Read a study. given: a file's path, or its content. Raises ConfigError with all problems, a line each."""
    if isinstance(given, str):
        return _StudyReader(given).study(read_mapping(given, "a study file"))
    return _StudyReader("study").study(node_of(given).entries or ())


class _StudyReader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._problems: dict[str, None] = {}

    def study(self, entries: tuple[Entry, ...]) -> Study:
        own = {entry.key: entry for entry in entries if entry.key in _SPECIAL}
        fixed = [entry for entry in entries if entry.key not in _SPECIAL]
        if len(own) + len(fixed) < len(entries):
            for entry in entries:
                if entry.key in own and own[entry.key] is not entry:
                    self._problem(entry, "given more than once")
        if not entries:
            self._problems[f"{self._path}: the file is empty"] = None
        self._known(fixed)
        base = self._cluster(own.get("cluster"))
        points = self._points(own["points"]) if "points" in own else [_Variant([])]
        axes = self._axes(own["grid"]) if "grid" in own else []
        total = len(points)
        for axis in axes:
            total *= len(axis)
        if total > MOST_POINTS:
            self._problem(own["grid"], f"makes {total:,} points; at most {MOST_POINTS:,} are allowed in one study")
            raise ConfigError(self._problems)
        made = [self._point(number, base, fixed, choices) for number, choices in enumerate(product(points, *axes), 1)]
        if not self._problems:
            self._effect(made, base, entries)
        if self._problems:
            raise ConfigError(sorted(self._problems, key=self._line_of))
        name = own["name"].node.value if "name" in own else self._path
        return Study(str(name), tuple(made))

    def _effect(self, points: Iterable[StudyPoint], base: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Tell of settings that do nothing in any point."""
        idle = without_effect([*(point.config for point in points if point.config is not None), *alone(base)])
        for name, sentence in idle.items():
            line = _line_of_key(name.rpartition(" ")[2], entries)
            place = self._path if line is None else f"{self._path}:{line}"
            self._problems[f"{place}: {sentence}"] = None

    def _cluster(self, entry: Entry | None) -> dict[str, Any]:
        if entry is None:
            return {}
        if not isinstance(entry.node.value, str):
            self._problem(entry, "must be a cluster file, or bundled:NAME")
            return {}
        try:
            return read_cluster_file(entry.node.value)
        except ConfigError as error:
            for problem in error.problems:
                self._problem(entry, problem)
            return {}

    def _points(self, entry: Entry) -> list[_Variant]:
        items = entry.node.items or ()
        if not items or any(item.entries is None for item in items):
            self._problem(entry, "must be a list of points, each a mapping of `key: value` lines after a dash")
            return []
        choices = []
        for number, item in enumerate(items, 1):
            lines = list(item.entries or ())
            names = [line for line in lines if line.key == "name"]
            lines = [line for line in lines if line.key != "name"]
            self._known(lines)
            varied = {line.key: _text(line.node) for line in lines}
            if names:
                varied = {"point": str(names[0].node.value)}
            choices.append(_Variant(lines, varied or {"point": str(number)}))
        return choices

    def _axes(self, entry: Entry) -> list[list[_Variant]]:
        if not entry.node.entries:
            self._problem(entry, "must be a mapping of `key: [value, value]` lines")
            return []
        axes = []
        for line in entry.node.entries:
            self._known([line])
            if line.node.items:
                values = [(_text(item), item) for item in line.node.items]
            elif line.node.entries:
                values = [(named.key, named.node) for named in line.node.entries]
            else:
                self._problem(line, "must be a list of values, or a mapping from names to values")
                continue
            texts = [text for text, _ in values]
            if len(set(texts)) < len(texts):
                self._problem(line, f"has {next(t for t in texts if texts.count(t) > 1)} twice")
            axes.append([_Variant([Entry(line.key, node.line, node)], {line.key: text}) for text, node in values])
        return axes

    def _known(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if canonical_name(entry.key) in _SERVED and entry.key not in LOAD_SETTINGS:
                self._problem(entry, "only `llmirage serve` has it: a simulation does not follow it")
            if _is_known(entry):
                continue
            known = [*LOAD_SETTINGS, *setting_names(), *_SPECIAL]
            key = entry.key.rpartition(".")[2]
            near = did_you_mean(key, known) or "; it is neither a setting of cluster files nor of a load"
            self._problem(entry, f"unknown key{near}")

    def _point(self, number: int, base: dict[str, Any], fixed: list[Entry], choices: Sequence[_Variant]) -> StudyPoint:
        chosen = [entry for choice in choices for entry in choice.entries]
        varied = {key: text for choice in choices for key, text in choice.varied.items()}
        later = {entry.key for entry in chosen}
        load: dict[str, Any] = {}
        cluster: list[list[Entry]] = [[], []]  # what holds for all points, what is chosen
        of_pools: dict[str, dict[str, Any]] = {}
        for own, entries in enumerate(([e for e in fixed if e.key not in later], chosen)):
            for entry in filter(_is_known, entries):  # others are told of already
                pool, dot, key = entry.key.rpartition(".")
                if dot:
                    of_pools.setdefault(pool, {}).update(self._settings([Entry(key, entry.line, entry.node)]))
                elif entry.key in LOAD_SETTINGS:
                    self._load_setting(entry, load)
                else:
                    cluster[own].append(entry)
        always, here = self._settings(cluster[0]), self._settings(cluster[1])
        settings, given = (base | always, here) if "pools" in always else (base, always | here)
        structure = {key: given.pop(key) for key in ("pools", "events", "kv_transfer") if key in given}
        if "seed" in load:
            given["seed"] = load["seed"]
        try:
            config = combined(settings | structure, given, of_pools)
        except ConfigError as error:
            return StudyPoint(number, varied, None, load, "; ".join(error.problems))
        return StudyPoint(number, varied, config, load)

    def _load_setting(self, entry: Entry, load: dict[str, Any]) -> None:
        if entry.key in load:
            self._problem(entry, "given more than once")
            return
        try:
            load[entry.key] = read_load_setting(entry.key, entry.node.value)
        except ValueError as error:
            self._problem(entry, str(error))

    def _settings(self, entries: list[Entry]) -> dict[str, Any]:
        none: dict[str, Any] = {entry.key: () for entry in entries if entry.key == "events" and not entry.node.value}
        values, problems = read_settings(self._path, [entry for entry in entries if entry.key not in none])
        self._problems.update(dict.fromkeys(problems))
        return none | values

    def _line_of(self, problem: str) -> int:
        line, _, _ = problem.removeprefix(f"{self._path}:").partition(":")
        return int(line) if line.isdigit() else 0

    def _problem(self, entry: Entry, problem: str) -> None:
        place = f"{self._path}:{entry.line}" if entry.line else self._path  # data has no lines
        self._problems[f"{place}: {entry.key}: {problem}"] = None


def _line_of_key(name: str, entries: Iterable[Entry]) -> int | None:
    """Return the first line that gives a setting, in blocks too; None: there is none, or data has no lines."""
    for entry in entries:
        if canonical_name(entry.key.rpartition(".")[2]) == name:
            return entry.line or None
        blocks = (entry.node, *(entry.node.items or ()))
        for block in blocks:
            if (line := _line_of_key(name, block.entries or ())) is not None:
                return line
    return None


def _text(node: YamlNode) -> str:
    """Return a value in a table: as it was written, where that is short."""
    value = node.value
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | dict):
        text = ", ".join(map(str, value)) if isinstance(value, list) else ", ".join(f"{k}: {v}" for k, v in value.items())
        return text if len(text) <= 40 else text[:37] + "..."
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_known(entry: Entry) -> bool:
    key = entry.key.rpartition(".")[2]
    return key in LOAD_SETTINGS or is_setting(key)

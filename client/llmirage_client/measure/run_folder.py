"""A run read back from its folder, as `report` and `compare` need it: also one that was cut off, and one of AIPerf."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from llmirage_client.measure.goodput import parse_goodput
from llmirage_client.measure.record import BranchStats, ClientCost, Record, RunResult, WorkerResult
from llmirage_client.measure.record_line import RecordLineError, record_of
from llmirage_client.measure.slo import parse_slo
from llmirage_shared.settings import InputRefused

RECORDS_FILE = "profile_export.jsonl"
HEAD_FILE = "llmirage_run.json"
NO_RUN = f"there is no run here: a run has a file {RECORDS_FILE}, which `simulate` writes with --records"
CUT = "the run has no summary: it was killed, crashed, or is still in progress"


class RunFolderError(ValueError):
    """There is no run to be read; the message is for the user."""


def read_run(place: Path | str) -> RunResult:
    """The run whose folder, or whose profile_export.jsonl, is `place`. Raises RunFolderError.

    Works on the records alone. Without the summary that a finished run has, the result is `cancelled` with CUT as reason,
    and branch_stats and the client's cost are unknown. notes say what could not be read.
    """
    path = Path(place)
    records_path = path / RECORDS_FILE if path.is_dir() else path
    if path.is_dir() and not records_path.exists():
        raise RunFolderError(f"{path}: {NO_RUN}")
    lines, problems = _lines(records_path)
    about = _about(records_path)
    times = [t for line in lines for key in ("credit_issued_ns", "request_start_ns") if (t := _time_ns(line, key))]
    start_unix_ns = about.start_unix_ns or min(times, default=0)
    records: list[Record] = []
    for line in lines:
        try:
            records.append(record_of(line, start_unix_ns, about.speed))
        except RecordLineError as error:
            problems.append(str(error))
    if not records and problems:
        raise RunFolderError(f"{records_path}: no line of it is the record of a request: {problems[0]}")
    result = about.result(records, start_unix_ns)
    _check_limits(result.options, records_path)
    if problems:
        result.notes.append(
            f"{len(problems)} {'line' if len(problems) == 1 else 'lines'} of {records_path.name} could not be read and "
            f"{'is' if len(problems) == 1 else 'are'} left out: {problems[0]}."
        )
    return result


def read_runs(places: Iterable[Path | str]) -> list[RunResult]:
    """Return each of the runs. Raises InputRefused with one problem for each that cannot be read."""
    found, problems = [], []
    for place in places:
        try:
            found.append(read_run(place))
        except RunFolderError as error:
            problems.append(str(error))
    if problems:
        raise InputRefused(problems)
    return found


def find_runs(place: Path | str) -> list[Path]:
    """The folder itself if it is a run's, else those below it that are, in order of their names (numbers as numbers)."""
    folder = Path(place)
    if (folder / RECORDS_FILE).is_file() or folder.is_file():
        return [folder]
    return sorted((p.parent for p in folder.rglob(RECORDS_FILE)), key=_natural) if folder.is_dir() else []


def _natural(path: Path) -> list[Any]:
    return [(0, float(part)) if part[0].isdigit() else (1, part) for part in re.findall(r"\d+(?:\.\d+)?|\D+", str(path))]


def _lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The JSON objects of a file, and what is wrong with its other lines."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from None
    lines, problems = [], []
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            lines.append(value)
        else:
            torn = not content.endswith(b"\n") and number == content.count(b"\n") + 1
            problems.append(f"line {number} " + ("is incomplete" if torn else "is not a JSON object"))
    return lines, problems


def _time_ns(line: Mapping[str, Any], key: str) -> int | None:
    metadata = line.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, int) and value > 0 else None


@dataclass(slots=True)
class _About:
    """What is known of the run besides its records. summary: empty when it did not come to its end."""

    summary: Mapping[str, Any]
    head: Mapping[str, Any]

    @property
    def own(self) -> Mapping[str, Any]:
        return _mapping(self.head.get("llmirage"))

    @property
    def speed(self) -> float:
        speed = self.own.get("speed")
        return float(speed) if isinstance(speed, (int, float)) and speed > 0 else 1.0

    @property
    def start_unix_ns(self) -> int | None:
        start = self.own.get("start_unix_ns")
        return start if isinstance(start, int) else None

    def result(self, records: list[Record], start_unix_ns: int) -> RunResult:
        config, own = _mapping(self.head.get("input_config")), _mapping(self.summary.get("llmirage"))
        endpoint = _mapping(config.get("endpoint"))
        dataset = _mapping(next(iter(_list(config.get("datasets"))), None))
        ends_s = [r.exchange.start_s if r.exchange.end_s is None else r.exchange.end_s for r in records]
        length_s = own.get("run_s", _seconds_between(self.summary))
        models = _names(config.get("models"), endpoint.get("model_names"))
        return RunResult(
            records=records,
            branch_stats=_branch_stats(self.summary.get("branch_stats")),
            start_s=0.0,
            end_s=float(length_s) if isinstance(length_s, (int, float)) else max(ends_s, default=0.0),
            start_unix_s=start_unix_ns / 1e9,
            cancelled=self.summary.get("was_cancelled") is True or not self.summary,
            cancel_reason=own.get("cancel_reason") if self.summary else CUT,
            speed=self.speed,
            model=", ".join(models),
            url=str(next(iter(_list(endpoint.get("urls")) or [endpoint.get("url") or ""]), "")),
            endpoint=str(endpoint.get("type") or "chat"),
            streaming=bool(endpoint.get("streaming", any(r.exchange.streamed for r in records))),
            workload_format=str(dataset.get("format") or ""),
            workload_path=str(dataset.get("path") or ""),
            options=_mapping(config.get("options")),
            client_cpu_s=None,
            client_cost=_client_cost(own.get("client")),
            workers=_workers(own.get("workers")),
            notes=[str(note) for note in _list(own.get("notes"))],
            deployment=[pool for pool in _list(self.own.get("deployment")) if isinstance(pool, dict)],
            version=str(self.own.get("version") or self.summary.get("aiperf_version") or ""),
        )


def _check_limits(options: Mapping[str, Any], records_path: Path) -> None:
    """Figures are computed with these limits: the file may have been edited to others."""
    for name, parse in (("goodput", parse_goodput), ("slo", parse_slo)):
        try:
            if options.get(name):
                parse(str(options[name]))
        except ValueError as error:
            problem = "; ".join(str(error).splitlines())
            raise RunFolderError(
                f"{records_path.parent}: the limits of --{name} in this run's files cannot be read: {problem}"
            ) from None


def _about(records_path: Path) -> _About:
    """The summary beside the records, if it is theirs: a run that was cut off leaves that of no other behind."""
    stem = records_path.name.removesuffix(".jsonl")
    summary = _json(records_path.with_name(f"{stem}_aiperf.json"))
    head = _json(records_path.with_name(HEAD_FILE))
    if head and summary and head.get("benchmark_id") != summary.get("benchmark_id"):
        summary = {}
    return _About(summary, head or summary)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(models: Any, names: Any) -> list[str]:
    items = models.get("items") if isinstance(models, dict) else models
    found = [item.get("name") if isinstance(item, dict) else item for item in _list(items) or _list(names)]
    return [str(name) for name in found if name]


def _seconds_between(summary: Mapping[str, Any]) -> float | None:
    try:
        start, end = (datetime.fromisoformat(str(summary[key])) for key in ("start_time", "end_time"))
        return (end - start).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None


def _branch_stats(value: Any) -> BranchStats | None:
    if not isinstance(value, dict):
        return None
    known = {f.name for f in fields(BranchStats)}
    return BranchStats(**{k: v for k, v in value.items() if k in known and isinstance(v, int)})


def _client_cost(value: Any) -> ClientCost | None:
    names = {f.name for f in fields(ClientCost)}
    if not isinstance(value, dict) or not names <= value.keys():
        return None
    return ClientCost(**{name: value[name] for name in names})


def _workers(value: Any) -> list[WorkerResult]:
    names = {f.name for f in fields(WorkerResult)}
    given = [worker for worker in value or () if isinstance(worker, dict) and names <= worker.keys()]
    return [
        WorkerResult(**{name: worker[name] for name in names} | {"cost": _client_cost(worker["cost"])}) for worker in given
    ]

"""Runs read back from their folders for `report` and `compare`, also interrupted ones and AIPerf's.

A line of profile_export.jsonl becomes a Record again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.record import (
    USAGE_TAGS,
    BranchStats,
    ClientCost,
    Exchange,
    Record,
    RequestError,
    RunResult,
    WorkerResult,
    usage_of,
)
from llmirage_client.measure.request_metrics import parse_goodput
from llmirage_client.measure.slo import parse_slo
from llmirage_client.workload.session import Tenant
from llmirage_shared.plural import plural
from llmirage_shared.settings import InputRefused

_IN_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}


class RecordLineError(ValueError):
    """The line is not that of a request; the message says why."""


def record_of(line: Mapping[str, Any], start_unix_ns: int, speed: float) -> Record:
    """Return the record that made the line, on a run clock that starts at start_unix_ns. Raises RecordLineError.

    Texts are not in the file; everything that metrics are computed from is, to the nanosecond.
    """
    metadata, metrics = line.get("metadata"), line.get("metrics") or {}
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        raise RecordLineError("it has no metadata of a request")
    own = line.get("llmirage")
    own = own if isinstance(own, dict) else {}

    def moment_s(key: str) -> float | None:
        value = metadata.get(key)
        return (value - start_unix_ns) / (1e9 * speed) if isinstance(value, int) and not isinstance(value, bool) else None

    start_s = moment_s("request_start_ns")
    if start_s is None:
        raise RecordLineError("it has no request_start_ns")
    issued_s = moment_s("credit_issued_ns")
    correlation_id = str(metadata.get("x_correlation_id") or metadata.get("x_request_id") or metadata.get("session_num"))
    exchange = Exchange(
        start_s=start_s,
        ack_s=moment_s("request_ack_ns"),
        end_s=moment_s("request_end_ns"),
        status=_whole(own.get("status")),
        streamed=own.get("streamed", "time_to_first_token" in metrics or not metrics) is True,
        finish_reason=own.get("finish_reason"),
        error=_error(line.get("error")),
        skipped_events=_whole(own.get("skipped_events")) or 0,
        retries=_whole(own.get("retries")) or 0,
        url=own.get("url"),
        other_model=_model_pair(own.get("other_model")),
    )
    record = Record(
        session_num=_whole(metadata.get("session_num")) or 0,
        conversation_id=str(metadata.get("conversation_id") or ""),
        turn_index=_whole(metadata.get("turn_index")) or 0,
        request_id=str(metadata.get("x_request_id") or ""),
        correlation_id=correlation_id,
        root_correlation_id=str(metadata.get("root_correlation_id") or correlation_id),
        parent_correlation_id=metadata.get("parent_correlation_id"),
        agent_depth=_whole(metadata.get("agent_depth")) or 0,
        issued_s=start_s if issued_s is None else issued_s,
        exchange=exchange,
        phase=str(metadata.get("benchmark_phase") or "profiling"),
        cancelled=metadata.get("was_cancelled") is True,
        input_tokens_asked=_whole(own.get("input_tokens_asked")),
        output_tokens_asked=_whole(own.get("output_tokens_asked")),
        parent_turn_index=_whole(own.get("parent_turn_index")),
        turns=_whole(own.get("turns")),
        joined=tuple(map(str, own.get("joined", ()))),
        tenant=Tenant(str(own.get("tenant") or ""), str(own.get("service_class") or ""), _whole(own.get("priority")) or 0),
    )
    if own.get("branch_mode") in BRANCH_MODES:
        record.branch_mode = own["branch_mode"]
    elif record.parent_correlation_id is not None or record.agent_depth:
        record.branch_mode = "spawn"  # AIPerf does not say; only a fork would continue its parent
    _take_measured(record, metrics, own, speed)
    return record


def _take_measured(record: Record, metrics: Mapping[str, Any], own: Mapping[str, Any], speed: float) -> None:
    exchange = record.exchange
    counts = {tag: value for tag in USAGE_TAGS if (value := _whole(_value(metrics, tag))) is not None}
    exchange.usage = usage_of(counts) or None
    record.input_tokens = _whole(own.get("input_tokens"))
    record.output_tokens = _whole(own.get("output_tokens"))
    # Without the server's count the lengths are the client's; those of AIPerf always are, unless it was told otherwise.
    if record.input_tokens is None and (not own or "usage_prompt_tokens" not in counts):
        record.input_tokens = _whole(_value(metrics, "input_sequence_length"))
    if record.output_tokens is None and (not own or "usage_completion_tokens" not in counts):
        record.output_tokens = _whole(_value(metrics, "output_sequence_length"))

    def reached_s(tag: str) -> float | None:
        """Return the moment that a metric is the time until, since the start of the request."""
        ms = _ms(metrics, tag)
        return None if ms is None else exchange.start_s + ms / (1e3 * speed)

    exchange.body_s = reached_s("http_req_waiting")
    exchange.first_output_s = reached_s("time_to_first_output_token")
    first_s, last_s = reached_s("time_to_first_token"), reached_s("request_latency")
    if first_s is None:
        exchange.token_s = [] if last_s is None else [last_s]
        return
    gaps = _value(metrics, "inter_chunk_latency")
    factor = _IN_MS.get(_unit(metrics, "inter_chunk_latency"), 1.0) / (1e3 * speed)
    exchange.token_s = [first_s]
    if isinstance(gaps, list):
        exchange.token_s = list(accumulate([gap * factor for gap in gaps], initial=first_s))
    if last_s is not None:
        if len(exchange.token_s) > 1:
            exchange.token_s[-1] = last_s  # free of the roundings of all gaps
        elif last_s > first_s:
            exchange.token_s.append(last_s)


def _model_pair(value: Any) -> tuple[str, str] | None:
    return (str(value[0]), str(value[1])) if isinstance(value, list) and len(value) == 2 else None


def _error(value: Any) -> RequestError | None:
    if not isinstance(value, dict):
        return None
    return RequestError(_whole(value.get("code")), str(value.get("type") or "error"), str(value.get("message") or ""))


def _value(metrics: Mapping[str, Any], tag: str) -> Any:
    entry = metrics.get(tag)
    return entry.get("value") if isinstance(entry, dict) else None


def _unit(metrics: Mapping[str, Any], tag: str) -> str:
    entry = metrics.get(tag)
    return str(entry.get("unit")) if isinstance(entry, dict) else ""


def _ms(metrics: Mapping[str, Any], tag: str) -> float | None:
    value = _value(metrics, tag)
    return value * _IN_MS.get(_unit(metrics, tag), 1.0) if isinstance(value, (int, float)) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) else None


RECORDS_FILE = "profile_export.jsonl"
HEAD_FILE = "llmirage_run.json"
NO_RUN = f"there is no run here: a run has a file {RECORDS_FILE}, which `simulate` writes with --set records=true"
CUT = "the run has no summary: it was killed, crashed, or is still in progress"


class RunFolderError(ValueError):
    """There is no run to be read; the message is for the user."""


def read_run(place: Path | str) -> RunResult:
    """Read the run whose folder, or whose profile_export.jsonl, is `place`. Raises RunFolderError.

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
            f"{plural(len(problems), 'line')} of {records_path.name} could not be read and "
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
    """Return the folder itself if it is a run's, else the runs below it by name (numbers as numbers)."""
    folder = Path(place)
    if (folder / RECORDS_FILE).is_file() or folder.is_file():
        return [folder]
    return sorted((p.parent for p in folder.rglob(RECORDS_FILE)), key=_natural) if folder.is_dir() else []


def _natural(path: Path) -> list[Any]:
    return [(0, float(part)) if part[0].isdigit() else (1, part) for part in re.findall(r"\d+(?:\.\d+)?|\D+", str(path))]


def _lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the JSON objects of a file, and the problems of its other lines."""
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
    """Facts of the run besides its records. summary: empty when the run did not end."""

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
    """Return the summary beside the records, if it is theirs: a run that was cut off leaves that of no other behind."""
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


CLUSTER_FILE = "cluster_series.json"
_DECIMALS = 4


@dataclass(slots=True, frozen=True)
class ClusterLevels:
    """Levels over equal or unequal stretches of time, one row an instance.

    instances: their names. edges_s: shape (stretches + 1,), cluster time since the first request.
    levels: by name, shape (instances, stretches); NaN where nothing is known. The report knows these names and their units:
        running (requests in the batch), waiting (requests queued), kv_used_pct, busy_pct (part of the time that a step ran),
        prefix_hit_pct (prompt tokens found cached), preemptions (how many). Others are drawn under their own names.
    step_time_s: where the time of all steps went, by part of a step.
    autoscaling: the decisions, as GET /llmirage/autoscaling has them.
    """

    instances: tuple[str, ...]
    edges_s: npt.NDArray[np.float64]
    levels: Mapping[str, npt.NDArray[np.float64]]
    step_time_s: Mapping[str, float] = field(default_factory=dict)
    autoscaling: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        """Check the shapes. Raises RunFolderError."""
        shape = (len(self.instances), max(self.edges_s.size - 1, 0))
        for name, values in self.levels.items():
            if values.shape != shape:
                raise RunFolderError(f"{name} has the shape {values.shape}, instances and edges say {shape}")

    def write(self, folder: Path) -> Path:
        path = folder / CLUSTER_FILE
        content = {
            "instances": list(self.instances),
            "edges_s": self.edges_s.round(6).tolist(),
            "levels": {name: _plain(values) for name, values in self.levels.items()},
            "step_time_s": dict(self.step_time_s),
            **({"autoscaling": list(self.autoscaling)} if self.autoscaling else {}),
        }
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        return path


def read_cluster_series(folder: Path) -> ClusterLevels | None:
    """Return the series of the run in `folder`; None when it has none. Raises RunFolderError when the file is broken."""
    path = folder / CLUSTER_FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: {error}") from None
    try:
        return ClusterLevels(
            instances=tuple(str(name) for name in content["instances"]),
            edges_s=np.array(content["edges_s"], dtype=np.float64),
            levels={str(k): np.array(v, dtype=np.float64).reshape(len(v), -1) for k, v in content["levels"].items()},
            step_time_s={str(k): float(v) for k, v in content.get("step_time_s", {}).items()},
            autoscaling=tuple(content.get("autoscaling", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{path}: not the levels of instances over time: {error}") from None


def _plain(values: npt.NDArray[np.float64]) -> list[list[Any]]:
    """Return rows of numbers, null for NaN."""
    return [[None if v != v else v for v in row] for row in values.round(_DECIMALS).tolist()]

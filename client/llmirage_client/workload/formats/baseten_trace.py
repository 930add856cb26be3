"""baseten_trace: requests that Baseten served, a Parquet file with their prompts. Documented by AIPerf.

Sent as completions: the prompt as it is, with the length of the recorded reply and hints on the hashes of its blocks. Rows
of one session follow each other: at their own times on a schedule, else as long after the previous reply as recorded.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from llmirage_client.workload.checking import MS_PER_S, Checker
from llmirage_client.workload.files import fault
from llmirage_client.workload.format import Format, Option, never
from llmirage_client.workload.loading import Loading
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Session, Turn, Workload

_COLUMNS = ("timestamp_start_unix_ms", "prompt", "input_tokens", "output_tokens")
_SESSIONS = ("provided_session_id", "poor_man_session_id")
_USED = (*_COLUMNS, *_SESSIONS, "total_hashes", "block_size", "duration_e2e_ms")
_MAGIC = b"PAR1"


def load(path: str, *, force_min_tokens: bool = True, kv_hints: bool = True) -> Workload:
    """Load every row of the file.

    force_min_tokens: send the length of the reply as min_tokens too. kv_hints: send the hashes.

    Raises WorkloadError with all problems, each with its row and column.
    """
    file = Loading(path)
    rows = list(_rows(path))
    column = _session_column(rows)
    groups: dict[str, list[tuple[float, float, Turn, int]]] = {}
    for number, row in enumerate(rows, start=1):
        check = Checker(number)
        read = _read(row, check, force_min_tokens, kv_hints)
        file.problems += check.problems
        if read is not None:
            given = None if column is None else row.get(column)
            groups.setdefault(f"row_{number}" if given is None else str(given), []).append((*read, number))
            file.without_reply += not row["output_tokens"]
    file.finish(rows, "has no rows")
    sessions = [_session(name, group) for name, group in groups.items()]
    return scheduled(FORMAT.name, path, sessions, file.notes())


def _rows(path: str) -> Iterator[Mapping[str, Any]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise fault(path, "is a Parquet file, which needs pyarrow: pip install 'llmirage[parquet]'")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [f"'{column}'" for column in _COLUMNS if column not in names]:
                raise fault(path, f"has no column {', '.join(missing)} (it has {', '.join(map(repr, names[:12]))})")
            for batch in file.iter_batches(columns=[name for name in _USED if name in names]):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise fault(path, f"is a damaged Parquet file: {str(error).splitlines()[0] if str(error) else error}") from None


def _session_column(rows: list[Mapping[str, Any]]) -> str | None:
    """Return the column in which more rows have a session that others have too; None where every session is one row."""
    found = {}
    for column in _SESSIONS:
        counts = Counter(row[column] for row in rows if row.get(column) is not None)
        found[column] = sum(count for count in counts.values() if count > 1)
    best = max(_SESSIONS, key=lambda column: found[column])
    return best if found[best] else None


def _read(
    row: Mapping[str, Any], check: Checker, force_min_tokens: bool, kv_hints: bool
) -> tuple[float, float, Turn] | None:
    """Start, end and request."""
    start_ms = check.number(row["timestamp_start_unix_ms"], "timestamp_start_unix_ms")
    prompt = check.text(row["prompt"], "prompt")
    check.tokens_from_0(row["input_tokens"], "input_tokens")
    output = check.tokens_from_0(row["output_tokens"], "output_tokens")
    duration_ms = check.given(row, "duration_e2e_ms", check.number) or 0.0
    if start_ms is None or prompt is None or output is None:
        return None
    most = max(output, 1)
    extra: dict[str, Any] = {"min_tokens": most} if force_min_tokens else {}
    if kv_hints:
        hints = {"hash_ids": row.get("total_hashes") or None, "block_size": row.get("block_size")}
        extra |= {key: value for key, value in hints.items() if value is not None}
    start_s = start_ms / MS_PER_S
    turn = Turn(({"role": "user", "content": prompt},), max_tokens=most, extra=extra, arrival_s=start_s)
    return start_s, start_s + duration_ms / MS_PER_S, turn


def _session(name: str, group: list[tuple[float, float, Turn, int]]) -> Session:
    group.sort(key=lambda entry: entry[0])
    turns: list[Turn] = []
    ended_s = group[0][0]
    for start_s, end_s, turn, _ in group:
        wait_s = max(start_s - ended_s, 0.0)
        turns.append(Turn(turn.messages, max_tokens=turn.max_tokens, extra=turn.extra, delay_s=wait_s, arrival_s=start_s))
        ended_s = end_s
    return Session(name, tuple(turns), "isolated", group[0][0], line=group[0][3])


FORMAT = Format(
    name="baseten_trace",
    summary="requests that Baseten served, with their prompts and sessions, as Parquet (needs llmirage[parquet])",
    needs="a Parquet file with the columns 'timestamp_start_unix_ms', 'prompt', 'input_tokens' and 'output_tokens'",
    recognises=never,
    load=load,
    aliases=("baseten",),
    order=60,
    options=(
        Option("force_min_tokens", "boolean", "send the length of the recorded reply as min_tokens, too", True),
        Option("kv_hints", "boolean", "send the hashes of the prompt's blocks", True),
    ),
    recognises_magic=lambda data: data.startswith(_MAGIC),
)

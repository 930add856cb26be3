"""Traces in CSV files with a time and two lengths a request.

azure_trace: Azure's LLM inference traces of 2023 and 2024, a CSV file with the time and the lengths of each request.

Published at github.com/Azure/AzurePublicDataset (Splitwise, ISCA 2024; DynamoLLM, HPCA 2025). Requests are independent: the
files have no sessions and do not say what prompts have in common.

burst_gpt_trace: the BurstGPT traces, a CSV file with the time and the lengths of each request.

Published at github.com/HPMLL/BurstGPT; the first version is documented by AIPerf. The second has a session for requests of
its conversation log: they are turns of one conversation, each at its own time and not before the previous reply. A request's
tokens are its whole prompt; a later one of a session begins as the one before it, reply included, where its length allows.
Failed requests, with 0 response tokens, are left out, and so are rows that cannot be read, as AIPerf does.

blis_trace: TraceV2 of the BLIS simulator: a CSV of requests, perhaps with its YAML header beside it.

Requests of a session are its rounds, each at its own time and not before the previous reply; without a schedule after the
think time, else the recorded gap. Prompts have in common what their prefix group says; where the header says that contexts
accumulate, a round's prompt begins with the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import fault
from llmirage_client.workload.format import Format, Option, never
from llmirage_client.workload.hash_blocks import (
    GrowingPrompts,
    ids_within,
    key_of,
    recorded_turn,
    unknown_prompt,
)
from llmirage_client.workload.loading import Loading, header_line, header_of
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import Session, SyntheticUser, Tenant, Turn, Workload
from llmirage_shared.yaml_lines import read_plain

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load(path: str) -> Workload:
    """Load every request of the file. Raises WorkloadError with all problems, each with line and column."""
    file = Loading(path)
    sessions: list[Session] = []
    for row, check in file.table(COLUMNS):
        line = check.line or 0
        at_s = check.moment(row[COLUMNS[0]], COLUMNS[0])
        tokens = check.tokens(row[COLUMNS[1]], COLUMNS[1])
        output = check.tokens_from_0(row[COLUMNS[2]], COLUMNS[2])
        if at_s is not None and tokens is not None and output is not None:
            file.without_reply += not output
            turn = recorded_turn(unknown_prompt(tokens, line), output, at_s)
            sessions.append(Session(f"request_{line}", (turn,), "isolated", at_s, line=line))
    file.finish(sessions, "has no requests below its header")
    return scheduled(FORMAT.name, path, sessions, file.notes())


FORMAT = Format(
    name="azure_trace",
    summary="Azure's LLM inference traces (2023, 2024): time, prompt and reply length of each request",
    needs="a header with the columns 'TIMESTAMP', 'ContextTokens' and 'GeneratedTokens'",
    recognises=never,
    load=load,
    aliases=("azure",),
    order=50,
    recognises_header=lambda line: set(COLUMNS) <= header_of(line),
    fetch="a file of github.com/Azure/AzurePublicDataset (data/AzureLLMInferenceTrace_conv.csv)",
)


_BURST_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_BURST_SESSION = "Session ID"
_BLOCK_TOKENS = 16  # to which prompts of a session share their beginning


def load_burst_gpt(path: str, *, sessions: bool = True) -> Workload:
    """Load every request of the file. sessions: requests of one session are turns of one conversation.

    Raises WorkloadError with all problems, each with line and column, if no row can be read or the file is no CSV.
    """
    file = Loading(path)
    lines: SessionLines[_BurstRow] = SessionLines()
    failed = 0
    for cells, check in file.table(_BURST_COLUMNS):
        if not cells[_BURST_COLUMNS[2]].strip("0."):
            failed += 1
            continue
        session_id = cells.get(_BURST_SESSION) if sessions else None
        row = _burst_row(cells, check)
        if row is not None:
            lines.add(session_id, row.line, [row])
    groups = list(lines.sessions())
    if not groups or not all(problem.field for problem in file.problems):
        file.finish(groups, "has no successful requests" if failed else "has no requests below its header")
    notes = [f"{failed:,} of the requests failed when the trace was recorded (0 response tokens): skipped"] if failed else []
    if unreadable := {problem.line for problem in file.problems}:
        notes.append(f"rows that cannot be read: {len(unreadable):,}, skipped; the first: {file.problems[0]}")
    return scheduled(BURST_GPT.name, path, [_burst_session(*group) for group in groups], notes)


class _BurstRow(NamedTuple):  # a trace has millions
    timestamp_s: float
    line: int
    tokens: int
    output_tokens: int


def _burst_row(cells: Mapping[str, str], check: Checker) -> _BurstRow | None:
    timestamp_s = check.number(cells[_BURST_COLUMNS[0]], _BURST_COLUMNS[0])
    tokens = check.tokens(cells[_BURST_COLUMNS[1]], _BURST_COLUMNS[1])
    output_tokens = check.tokens(cells[_BURST_COLUMNS[2]], _BURST_COLUMNS[2])
    if timestamp_s is None or tokens is None or output_tokens is None:
        return None
    return _BurstRow(timestamp_s, check.line or 0, tokens, output_tokens)


def _burst_session(name: str, line: int, rows: list[_BurstRow]) -> Session:
    """Return the requests of a session by their times, each with as much of the one before it as its length allows."""
    prompts = GrowingPrompts(_BLOCK_TOKENS, name)
    turns = [
        recorded_turn(
            prompts.next(row.tokens) if len(rows) > 1 else unknown_prompt(row.tokens, row.line),
            row.output_tokens,
            row.timestamp_s,
        )
        for row in sorted(rows)
    ]
    return Session(name, tuple(turns), mode="isolated", arrival_s=turns[0].arrival_s, line=line)


BURST_GPT = Format(
    name="burst_gpt_trace",
    summary="BurstGPT's CSV: time, prompt and reply length of each request",
    needs="a header with the columns 'Timestamp', 'Request tokens' and 'Response tokens'",
    recognises=never,
    load=load_burst_gpt,
    order=50,
    aliases=("burst_gpt",),
    recognises_header=lambda line: set(_BURST_COLUMNS) <= header_of(line),
    options=(Option("sessions", "boolean", "requests of one session are turns of one conversation", True),),
    fetch="a file of github.com/HPMLL/BurstGPT (data/BurstGPT_without_fails_1.csv)",
)


_BLIS_COLUMNS = ("request_id", "round_index", "input_tokens", "output_tokens", "arrival_time_us")
_BLIS_BLOCK_TOKENS = 16
_OK = ("", "ok", "completed", "success")
_US_PER_S = 1e6


@dataclass(slots=True, frozen=True)
class _Row:
    session: str
    round: int
    arrival_s: float
    tokens: int
    output_tokens: int
    think_s: float
    group: str
    prefix_tokens: int
    line: int
    tenant: Tenant


def load_blis(path: str, *, block_size: int = _BLIS_BLOCK_TOKENS, header: str | None = None) -> Workload:
    """Load every request of the CSV that succeeded. header: the YAML file, looked for beside the CSV where it is not given.

    Raises WorkloadError with all problems, each with line and column.
    """
    if path.endswith((".yaml", ".yml")):
        path, header = _csv_of(path), header or path
    about = _header(path, header)
    file = Loading(path)
    rows: dict[str, list[_Row]] = {}
    for cells, check in file.table(_BLIS_COLUMNS):
        if cells.get("status", "").lower() not in _OK:
            file.left_out.add("requests that failed when they were recorded")
            continue
        row = _blis_row(cells, check)
        if row is not None:
            rows.setdefault(row.session, []).append(row)
        if any(cells.get(f"{kind}_tokens", "").strip("0.") for kind in ("image", "audio", "video")):
            file.left_out.add("pictures, sounds and videos of requests: their tokens are text")
    file.finish(rows, "has no request that can run")
    grows = about.get("session_context_growth") == "accumulate"
    sessions = [_blis_session(name, own, block_size, grows) for name, own in rows.items()]
    return scheduled(BLIS.name, path, sessions, file.notes())


def _header(path: str, given: str | None) -> Mapping[str, Any]:
    """Return the YAML header: the file given, or the only one beside the CSV that is one."""
    if given is not None:
        found = _yaml(Path(given))
        if found is None:
            raise fault(path, f"{given} is not a YAML file with trace_version", field="option header")
        return found
    beside = [*Path(path).parent.glob("*.yaml"), *Path(path).parent.glob("*.yml")]
    headers = [found for file in sorted(beside) if (found := _yaml(file)) is not None]
    return headers[0] if len(headers) == 1 else {}


def _csv_of(path: str) -> str:
    """Return the only CSV beside a header with this format's columns."""
    if _yaml(Path(path)) is None:
        raise fault(path, "is not a YAML file with trace_version")
    beside = [str(file) for file in sorted(Path(path).parent.glob("*.csv")) if _recognises_header(header_line(str(file)))]
    if len(beside) != 1:
        raise fault(path, f"is a header: give the CSV of its requests ({len(beside)} beside it are of this format)")
    return beside[0]


def _recognises_header(line: str) -> bool:
    return set(_BLIS_COLUMNS) <= header_of(line) or line.startswith("trace_version:")


def _yaml(file: Path) -> Mapping[str, Any] | None:
    try:
        text = file.read_text(encoding="utf-8")
        found = read_plain(text)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) and "trace_version" in found else None


def _blis_row(cells: Mapping[str, str], check: Checker) -> _Row | None:
    tokens = check.tokens(cells["input_tokens"], "input_tokens")
    output = check.tokens_from_0(cells["output_tokens"], "output_tokens")
    number = check.integer(cells["round_index"], "round_index", minimum=0)
    arrival_us = check.number(cells["arrival_time_us"], "arrival_time_us")
    think_us = check.number(cells["think_time_us"], "think_time_us") if cells.get("think_time_us") else 0.0
    prefix = check.tokens_from_0(cells.get("prefix_length") or "0", "prefix_length")
    if tokens is None or output is None or number is None or arrival_us is None or check.problems:
        return None
    session = cells.get("session_id") or f"request_{cells['request_id']}"
    return _Row(
        session, number, arrival_us / _US_PER_S, tokens, output, (think_us or 0.0) / _US_PER_S,
        cells.get("prefix_group", ""), min(prefix or 0, tokens), check.line or 0,
        Tenant(cells.get("tenant_id", ""), cells.get("slo_class", "")),
    )  # fmt: skip


def _blis_session(name: str, rows: list[_Row], block_tokens: int, grows: bool) -> Session:
    rows.sort(key=lambda row: (row.round, row.arrival_s))
    prompts = GrowingPrompts(block_tokens, "blis", name)
    turns: list[Turn] = []
    for index, row in enumerate(rows):
        grown = prompts.next(row.tokens, None if grows else 0)
        turn = recorded_turn(_with_group(grown, row, block_tokens), row.output_tokens, row.arrival_s)
        wait_s = row.think_s or max(row.arrival_s - rows[index - 1].arrival_s, 0.0) if index else 0.0
        turns.append(replace(turn, delay_s=wait_s))
    return Session(name, tuple(turns), "isolated", rows[0].arrival_s, line=rows[0].line, tenant=rows[0].tenant)


def _with_group(prompt: SyntheticUser, row: _Row, block_tokens: int) -> SyntheticUser:
    """Return the prompt with the beginning of its prefix group."""
    blocks = row.prefix_tokens // block_tokens
    if not row.group or not blocks or prompt.block_ids is None:
        return prompt
    common = ids_within(np.arange(blocks, dtype=np.int64), key_of("blis group", row.group))
    return replace(prompt, block_ids=np.concatenate([common, prompt.block_ids[blocks:]]))


BLIS = Format(
    name="blis_trace",
    summary="TraceV2 of the BLIS simulator: requests with rounds, times, lengths and prefix groups, as CSV",
    needs="a header with the columns 'request_id', 'round_index', 'input_tokens', 'output_tokens' and 'arrival_time_us'",
    recognises=never,
    load=load_blis,
    aliases=("blis_tracev2",),
    order=50,
    options=(
        Option(
            "block_size", "integer", "tokens to which prompts share what they have in common", _BLIS_BLOCK_TOKENS, minimum=1
        ),
        Option("header", "text", "the YAML file of the trace; else one beside the CSV"),
    ),
    recognises_header=_recognises_header,
)

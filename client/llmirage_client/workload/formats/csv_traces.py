"""Traces in CSV files with a time and two lengths a request.

azure_trace: Azure's LLM inference traces of 2023 and 2024, a CSV file with the time and the lengths of each request.

Published at github.com/Azure/AzurePublicDataset (Splitwise, ISCA 2024; DynamoLLM, HPCA 2025). Requests are independent: the
files have no sessions and do not say what prompts have in common.

burst_gpt_trace: the BurstGPT traces, a CSV file with the time and the lengths of each request.

Published at github.com/HPMLL/BurstGPT; the first version is documented by AIPerf. The second has a session for requests of
its conversation log: they are turns of one conversation, each at its own time and not before the previous reply. A request's
tokens are its whole prompt; a later one of a session begins as the one before it, reply included, where its length allows.
Failed requests, with 0 response tokens, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.files import header_of, read_table
from llmirage_client.workload.format import Format, Option, never
from llmirage_client.workload.hash_blocks import GrowingPrompts, recorded_turn, unknown_prompt, without_reply_note
from llmirage_client.workload.schedule import SessionLines, scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load(path: str) -> Workload:
    """Every request of the file. Raises WorkloadError with all problems, each with line and column."""
    problems: list[Problem] = []
    sessions: list[Session] = []
    without_reply = 0
    for row, check in read_table(path, COLUMNS, problems):
        line = check.line or 0
        at_s = check.moment(row[COLUMNS[0]], COLUMNS[0])
        tokens = check.integer(row[COLUMNS[1]], COLUMNS[1], minimum=1, maximum=MOST_TOKENS)
        output = check.integer(row[COLUMNS[2]], COLUMNS[2], minimum=0, maximum=MOST_TOKENS)
        if at_s is not None and tokens is not None and output is not None:
            without_reply += not output
            turn = recorded_turn(unknown_prompt(tokens, line), output, at_s)
            sessions.append(Session(f"request_{line}", (turn,), "isolated", at_s, line=line))
    if not sessions and not problems:
        problems.append(Problem("has no requests below its header"))
    if problems:
        raise WorkloadError(path, problems)
    return scheduled(FORMAT.name, path, sessions, without_reply_note(without_reply))


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
_BURST_FAILED = "0"
_BLOCK_TOKENS = 16  # to which prompts of a session share their beginning


def load_burst_gpt(path: str, *, sessions: bool = True) -> Workload:
    """Every request of the file. sessions: requests of one session are turns of one conversation.

    Raises WorkloadError with all problems, each with line and column.
    """
    problems: list[Problem] = []
    lines: SessionLines[Turn] = SessionLines()
    prompts: dict[str, GrowingPrompts] = {}
    failed = 0
    for row, check in read_table(path, _BURST_COLUMNS, problems):
        if row[_BURST_COLUMNS[2]] == _BURST_FAILED:
            failed += 1
            continue
        session_id = row.get(_BURST_SESSION) if sessions else None
        turn = _burst_turn(
            row, check, prompts.setdefault(session_id, GrowingPrompts(_BLOCK_TOKENS, session_id)) if session_id else None
        )
        lines.add(session_id, check.line or 0, [turn] if turn is not None else [])
    groups = list(lines.sessions())
    if not groups and not problems:
        problems.append(Problem("has no successful requests" if failed else "has no requests below its header"))
    if problems:
        raise WorkloadError(path, problems)
    notes = [f"{failed:,} of the requests failed when the trace was recorded (0 response tokens): skipped"] if failed else []
    found = [
        Session(name, tuple(turns), mode="isolated", arrival_s=turns[0].arrival_s, line=line) for name, line, turns in groups
    ]
    return scheduled(BURST_GPT.name, path, found, notes)


def _burst_turn(row: Mapping[str, str], check: Checker, prompts: GrowingPrompts | None) -> Turn | None:
    timestamp_s = check.number(row[_BURST_COLUMNS[0]], _BURST_COLUMNS[0])
    tokens = check.integer(row[_BURST_COLUMNS[1]], _BURST_COLUMNS[1], minimum=1, maximum=MOST_TOKENS)
    output_tokens = check.integer(row[_BURST_COLUMNS[2]], _BURST_COLUMNS[2], minimum=1, maximum=MOST_TOKENS)
    if timestamp_s is None or tokens is None or output_tokens is None:
        return None
    prompt = unknown_prompt(tokens, check.line or 0) if prompts is None else prompts.next(tokens)
    return recorded_turn(prompt, output_tokens, timestamp_s)


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

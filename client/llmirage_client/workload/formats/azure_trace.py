"""azure_trace: Azure's LLM inference traces of 2023 and 2024, a CSV file with the time and the lengths of each request.

Published at github.com/Azure/AzurePublicDataset (Splitwise, ISCA 2024; DynamoLLM, HPCA 2025). Requests are independent: the
files have no sessions and do not say what prompts have in common.
"""

from __future__ import annotations

from llmirage_client.workload.checking import MOST_TOKENS
from llmirage_client.workload.csv_rows import header_of, read_table
from llmirage_client.workload.format import Format, never
from llmirage_client.workload.hash_blocks import recorded_turn, unknown_prompt, without_reply_note
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, Workload, WorkloadError

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

"""burst_gpt_trace: the BurstGPT traces, a CSV file with the time and the lengths of each request.

Documented by AIPerf; published at github.com/HPMLL/BurstGPT. Columns other than these three are not used. The published
files have failed requests too, with 0 response tokens: they are left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.files import fault, read_bytes
from llmirage_client.workload.format import Format, never
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, SyntheticUser, Turn, Workload, WorkloadError

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_NO_BLOCKS = np.empty(0, dtype=np.int64)
_FAILED = "0"


def load(path: str) -> Workload:
    """Every request of the file. Raises WorkloadError with all problems, each with line and column."""
    data = read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(path, f"not UTF-8 text: byte 0x{data[error.start]:02x}", data.count(b"\n", 0, error.start) + 1) from None
    problems: list[Problem] = []
    rows = _rows(text, problems)
    places = _places(path, next(rows, (1, [])))
    sessions = []
    failed = 0
    for line, row in rows:
        if len(row) > places[2] and row[places[2]].strip() == _FAILED:
            failed += 1
            continue
        check = Checker(line)
        session = _session(line, row, places, check)
        problems += check.problems
        if session is not None:
            sessions.append(session)
    if not sessions and not problems:
        problems.append(Problem("has no successful requests" if failed else "has no requests below its header"))
    if problems:
        raise WorkloadError(path, problems)
    notes = [f"{failed:,} of the requests failed when the trace was recorded (0 response tokens): skipped"] if failed else []
    return scheduled(FORMAT.name, path, sessions, notes)


def _rows(text: str, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank, the header first."""
    reader = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            problems.append(Problem(f"invalid CSV: {error}", reader.line_num))
            continue
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield reader.line_num, row


def _places(path: str, header: tuple[int, Sequence[str]]) -> tuple[int, ...]:
    """The index of each of COLUMNS."""
    line, cells = header
    names = [cell.strip() for cell in cells]
    missing = [f"'{column}'" for column in COLUMNS if column not in names]
    if missing:
        seen = ", ".join(repr(name[:40]) for name in names[:8])
        raise fault(path, f"the header has no column {', '.join(missing)} (it has {seen})", line)
    return tuple(names.index(column) for column in COLUMNS)


def _session(line: int, row: Sequence[str], places: Sequence[int], check: Checker) -> Session | None:
    cells = [row[place].strip() if place < len(row) else "" for place in places]
    for column, cell in zip(COLUMNS, cells, strict=True):
        if not cell:
            check.fail(column, "Field required")
    if check.problems:
        return None
    timestamp_s = check.number(cells[0], COLUMNS[0])
    tokens = check.integer(cells[1], COLUMNS[1], minimum=1, maximum=MOST_TOKENS)
    output_tokens = check.integer(cells[2], COLUMNS[2], minimum=1, maximum=MOST_TOKENS)
    if timestamp_s is None or tokens is None or output_tokens is None:
        return None
    prompt = SyntheticUser(tokens, line, block_ids=_NO_BLOCKS)
    turn = Turn(synthetic=prompt, max_tokens=output_tokens, min_tokens=output_tokens, arrival_s=timestamp_s)
    return Session(f"request_{line}", (turn,), mode="isolated", arrival_s=timestamp_s, line=line)


def recognises_header(line: str) -> bool:
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        return False
    return set(COLUMNS) <= {cell.strip() for cell in cells}


FORMAT = Format(
    name="burst_gpt_trace",
    summary="BurstGPT's CSV: time, prompt and reply length of each request",
    needs="a header with the columns 'Timestamp', 'Request tokens' and 'Response tokens'",
    recognises=never,
    load=load,
    order=50,
    aliases=("burst_gpt",),
    recognises_header=recognises_header,
    fetch="a file of github.com/HPMLL/BurstGPT (data/BurstGPT_without_fails_1.csv)",
)

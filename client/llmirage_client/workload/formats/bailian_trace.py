"""bailian_trace: Alibaba's traces of Qwen's services, a request a line, lengths and block hashes only.

Documented by AIPerf; published at github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Requests are turns of a
conversation by parent_chat_id (-1: the first), in the order of `turn`. Each is a whole prompt as the service received it,
history included, so it is sent as it is: hash_ids, blocks of 16 tokens, say what it shares with others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.hash_blocks import read_prompt
from llmirage_client.workload.loading import Loading, StrayKeys
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, Turn, Workload

_KEYS = frozenset(("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids"))
_NO_PARENT = -1
BLOCK_TOKENS = 16


@dataclass(slots=True, frozen=True)
class _ChatLine:
    line: int
    chat_id: int
    parent_chat_id: int
    number: int
    turn: Turn


def load(path: str, *, block_size: int = BLOCK_TOKENS) -> Workload:
    """Load every request of the file. block_size: tokens that a hash stands for.

    Raises WorkloadError with all problems, each with line and field.
    """
    file = Loading(path)
    rows: dict[int, _ChatLine] = {}
    for fields, check in file.rows():
        row = _read(fields, check, file.stray, block_size)
        if row is not None and rows.setdefault(row.chat_id, row) is not row:
            check.fail("chat_id", f"{row.chat_id} is also on line {rows[row.chat_id].line}; ids must be unique")
    groups = _conversations(rows, file.problems)
    file.raise_problems()
    sessions = []
    for root, group in groups.items():
        group.sort(key=lambda row: row.number)
        turns = tuple(row.turn for row in group)
        line = min(row.line for row in group)
        sessions.append(Session(str(root), turns, mode="isolated", arrival_s=turns[0].arrival_s, line=line))
    return scheduled(FORMAT.name, path, sessions, file.notes())


def _read(row: Mapping[str, Any], check: Checker, stray: StrayKeys, block_tokens: int) -> _ChatLine | None:
    stray.look(row, _KEYS, check)
    chat_id = check.need(row, "chat_id", check.integer)
    parent = check.integer(row.get("parent_chat_id", _NO_PARENT), "parent_chat_id")
    number = check.integer(row.get("turn", 1), "turn")
    check.given(row, "type", check.text)
    timestamp_s = check.need(row, "timestamp", check.number)
    tokens = check.need(row, "input_length", check.tokens) or 0
    output_tokens = check.need(row, "output_length", check.tokens)
    key = check.line or 0
    synthetic = read_prompt(tokens, row.get("hash_ids"), block_tokens, key, check, "hash_ids")
    turn = Turn(synthetic=synthetic, max_tokens=output_tokens, min_tokens=output_tokens, arrival_s=timestamp_s)
    if chat_id is None or parent is None or number is None:
        return None
    return _ChatLine(key, chat_id, parent, number, turn)


def _conversations(rows: Mapping[int, _ChatLine], problems: list[Problem]) -> dict[int, list[_ChatLine]]:
    """Return the rows by the chat_id of their conversation's first one.

    A parent that the file does not have ends the search.
    """
    root_of: dict[int, int] = {}
    groups: dict[int, list[_ChatLine]] = {}
    for row in rows.values():
        path = [row.chat_id]
        while path[-1] not in root_of and (parent := rows[path[-1]].parent_chat_id) in rows and parent != _NO_PARENT:
            if parent in path:
                problems.append(_cycle(rows, path[path.index(parent) :]))
                break
            path.append(parent)
        root = root_of.get(path[-1], path[-1])
        root_of.update(dict.fromkeys(path, root))
        groups.setdefault(root, []).append(row)
    return groups


def _cycle(rows: Mapping[int, _ChatLine], chat_ids: Sequence[int]) -> Problem:
    chain = " -> ".join(str(chat_id) for chat_id in (*chat_ids, chat_ids[0]))
    return Problem(f"the chats are each other's parents: {chain}", rows[chat_ids[0]].line, "parent_chat_id")


FORMAT = Format(
    name="bailian_trace",
    summary="Alibaba's Qwen traces: lengths with block hashes, conversations by parent_chat_id",
    needs="'chat_id', 'timestamp', 'input_length' and 'output_length' on every line",
    recognises=any_of(*(("chat_id", key) for key in ("input_length", "output_length", "parent_chat_id"))),
    load=load,
    order=30,
    aliases=("bailian",),
    options=(Option("block_size", "integer", "tokens per hash id", BLOCK_TOKENS, minimum=1),),
    fetch="a trace of github.com/alibaba-edu/qwen-bailian-usagetraces-anon (qwen_traceA_blksz_16.jsonl)",
)

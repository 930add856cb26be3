"""swe_smith: conversations with an agent that repairs code. Documented by evalscope.

Either a prepared file, {"conversations": [[{"messages": [...]}, ...], ...]}: every turn's messages are added to the history;
or recorded trajectories, a row with `messages` a line, which are cut into conversations as the options say.

Cutting: only what a user or a tool said is taken; the live replies take the assistant's places. A turn is filled with whole
messages up to its target; the message that would exceed it is cut there, its rest is dropped, and the next turn goes on with
the next message. A trajectory that runs out of messages before its last turn begins is not used; one that ends within its
last turn is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import (
    MAX_TURNS,
    SKIP_BAD_LINES,
    TOKENIZER,
    bad_lines_note,
    conversation,
    required,
)
from llmirage_client.workload.files import JsonFault, fault, parse, placed, read_bytes, read_rows
from llmirage_client.workload.format import DATASET_OFFSET, Format, Option, skip
from llmirage_client.workload.session import Problem, Session, Turn, Workload, WorkloadError
from llmirage_shared.tokenizer_loader import load as load_tokenizer
from llmirage_shared.tokens import Tokenizer, TokenizerError

Range = tuple[int, int]


@dataclass(slots=True, frozen=True)
class Recipe:
    """Settings by which conversations are cut: inclusive ranges, drawn anew for each trajectory, in tokens.

    chars_per_token: trajectories too short for the longest conversation by this estimate are not looked at.
    """

    first_turn_length: Range
    subsequent_turn_length: Range
    turns: Range
    chars_per_token: float
    seed: int

    @property
    def fewest_characters(self) -> int:
        tokens = self.first_turn_length[1] + self.subsequent_turn_length[1] * (self.turns[1] - 1)
        return int(tokens * self.chars_per_token)


@dataclass(slots=True, frozen=True)
class Trajectory:
    """The texts of the user and of tools in order, and the line they stand on."""

    line: int
    texts: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Cut:
    """A conversation: the user messages of each turn."""

    line: int
    turns: tuple[tuple[str, ...], ...]


def read_trajectory(row: Mapping[str, Any], check: Checker, fewest_characters: int) -> Trajectory | None:
    """Return a row with `messages`, a list or JSON text of one; None when it is faulty, or too short, which is no fault."""
    if not required(check, row, "messages"):
        return None
    messages = row["messages"]
    size = len(messages) if isinstance(messages, str) else len(json.dumps(messages, ensure_ascii=False))
    if isinstance(messages, str):
        try:
            messages = parse(messages.encode("utf-8", "surrogatepass"))
        except JsonFault as error:
            check.fail("messages", f"a text here is JSON of a list, but: {error}")
            return None
    texts = tuple(_user_texts(check.some_items(messages, "messages"), check))
    if check.problems or size < fewest_characters or sum(map(len, texts)) < fewest_characters:
        return None
    return Trajectory(check.line or 0, texts)


def _user_texts(messages: Sequence[Any] | None, check: Checker) -> Iterator[str]:
    for at, message in check.each(messages, "messages"):
        if not required(check, message, "role", at):
            continue
        role = check.text(message["role"], f"{at}role")
        text = _text(message.get("content"), f"{at}content", check)
        if role in ("user", "tool") and text:
            yield text


def _text(content: Any, field: str, check: Checker) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        check.fail(field, f"Input should be a text or a list of parts, got {kind_of(content)}")
        return ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(part for part in parts if isinstance(part, str))


def cut_all(
    trajectories: Sequence[Trajectory], recipe: Recipe, tokenizer: Tokenizer, wanted: int, offset: int, workers: int
) -> list[Cut]:
    """Return the first `wanted` conversations of the shuffled trajectories from number `offset` on.

    The same for any `workers`.
    """
    order = list(trajectories)
    random.Random(f"{recipe.seed}/order").shuffle(order)
    turn = offset % len(order) if order else 0
    order = order[turn:] + order[:turn]
    with ThreadPoolExecutor(workers) as pool:  # encoding holds no interpreter lock
        made: list[Cut] = []
        queue = iter(order)
        while len(made) < wanted and (batch := list(islice(queue, max(workers * 4, wanted - len(made))))):
            cuts = pool.map(lambda trajectory: cut(trajectory, recipe, tokenizer), batch)
            made += [conversation for conversation in cuts if conversation is not None]
    return made[:wanted]


def cut(trajectory: Trajectory, recipe: Recipe, tokenizer: Tokenizer) -> Cut | None:
    """Return the conversation that a trajectory gives, None when it is too short.

    Its draws depend on the seed and its line.
    """
    draw = random.Random(f"{recipe.seed}/{trajectory.line}")
    first = draw.randint(*recipe.first_turn_length)
    subsequent = draw.randint(*recipe.subsequent_turn_length)
    count = draw.randint(*recipe.turns)
    texts = iter(trajectory.texts)
    turns: list[tuple[str, ...]] = []
    for target in [first] + [subsequent] * (count - 1):
        messages, missing = _fill(texts, target, tokenizer)
        if not messages or (missing and len(turns) + 1 < count):
            return None
        turns.append(messages)
    return Cut(trajectory.line, tuple(turns))


def _fill(texts: Iterator[str], target: int, tokenizer: Tokenizer) -> tuple[tuple[str, ...], int]:
    """Return messages of `target` tokens together, the last one cut.

    And how many tokens are missing when the texts run out.
    """
    messages: list[str] = []
    room = target
    while room > 0:
        text = next(texts, None)
        if text is None:
            break
        ids = tokenizer.encode_ordinary(text)
        messages.append(text if len(ids) <= room else tokenizer.decode(ids[:room]))
        room -= len(ids)
    return tuple(messages), max(room, 0)


_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_CONVERSATIONS = 128
_HEAD_BYTES = 4096
_TURN_DEPTH = 3  # conversations.0.1: problems are told with the line on which their turn begins


def load(
    path: str,
    *,
    first_turn_length: Range,
    subsequent_turn_length: Range,
    min_turns: int,
    max_turns: int | None,
    chars_per_token: float,
    num_workers: int,
    conversations: int,
    seed: int,
    tokenizer: str | None,
    skip_bad_lines: bool,
    dataset_offset: int,
) -> Workload:
    """Return the prepared conversations, or those cut from trajectories. Raises WorkloadError with all problems."""
    data = read_bytes(path)
    try:
        document = parse(data)
    except JsonFault as error:
        if b'"conversations"' in data[:_HEAD_BYTES]:
            raise fault(path, f"invalid JSON: {error}", error.line) from None
    else:
        if not (isinstance(document, dict) and "messages" in document):  # a single trajectory
            return skip(_prepared(path, data, document, max_turns), dataset_offset)
    most = min_turns if max_turns is None else max_turns
    if most < min_turns:
        raise fault(path, f"{min_turns} is more than max_turns {most}", field="option min_turns")
    recipe = Recipe(first_turn_length, subsequent_turn_length, (min_turns, most), chars_per_token, seed)
    trajectories, notes = _trajectories(path, data, recipe, skip_bad_lines)
    return _built(path, trajectories, recipe, tokenizer, conversations, dataset_offset, num_workers, notes)


def _prepared(path: str, data: bytes, document: Any, max_turns: int | None) -> Workload:
    check = Checker(None)
    rows: list[Any] = []
    if not isinstance(document, dict):
        check.fail(None, f'the file must hold an object {{"conversations": [...]}}, got {kind_of(document)}')
    elif "conversations" not in document:
        check.fail("conversations", "Field required")
    else:
        rows = check.items(document["conversations"], "conversations", may_be_empty=False) or []
    sessions: list[Session] = []
    empty = without_start = 0
    for i, row in enumerate(rows):
        turns = _turns(row, i, check)
        if turns:
            sessions.append(conversation(f"conversation_{i + 1}", turns[:max_turns]))
            without_start += not turns[0].messages
        empty += row == []
    if check.problems:
        raise WorkloadError(path, placed(check.problems, data, _TURN_DEPTH))
    if not sessions:
        raise fault(path, "holds no conversation: every one is empty", field="conversations")
    notes = [f"left out {empty}: empty conversations"] if empty else []
    if without_start:
        notes.append(f"{without_start} begin with a turn without messages, which most endpoints refuse")
    return Workload.of_roots(FORMAT.name, path, sessions, notes)


def _turns(row: Any, i: int, check: Checker) -> tuple[Turn, ...]:
    entries = check.items(row, f"conversations.{i}")
    turns = []
    rid: str | None = None
    for j, entry in enumerate(entries or []):
        messages, own_rid = _delta(entry, f"conversations.{i}.{j}", check)
        rid = own_rid or rid  # holds for the turns after it too
        turns.append(Turn(messages=messages, extra={"rid": f"{rid}_t{j + 1}"} if rid else {}))
    return tuple(turns)


def _delta(entry: Any, at: str, check: Checker) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """Return the messages that a turn adds to the history, and its routing id."""
    turn = check.mapping(entry, at)
    if turn is None:
        return (), None
    check.unknown_keys(turn, ("messages", "prompt_tokens", "rid"), f"{at}.", " (a turn has messages, prompt_tokens and rid)")
    messages = check.need(turn, "messages", check.mappings, f"{at}.")
    for k, message in enumerate(messages or ()):
        _check_message(message, f"{at}.messages.{k}", check)
    rid = check.given(turn, "rid", check.text, f"{at}.")
    return messages or (), rid


def _check_message(message: dict[str, Any], at: str, check: Checker) -> None:
    role = check.need(message, "role", check.text, f"{at}.")
    if role is not None and role not in _ROLES:
        check.fail(f"{at}.role", f"Input should be one of {', '.join(_ROLES)}, got '{role}'")
    if "content" not in message and "tool_calls" not in message:
        check.required(message, "content", f"{at}.")


def _trajectories(path: str, data: bytes, recipe: Recipe, skip_bad_lines: bool) -> tuple[list[Trajectory], list[str]]:
    """Return trajectories that are long enough by the estimate, and notes on the others."""
    problems: list[Problem] = []
    trajectories = []
    count = 0
    for row, check in read_rows(data, problems):
        trajectory = read_trajectory(row, check, recipe.fewest_characters)
        count += not check.problems
        if trajectory is not None:
            trajectories.append(trajectory)
    notes = bad_lines_note(path, problems, skip_bad_lines and bool(trajectories))
    if count > len(trajectories):
        notes.append(
            f"left out {count - len(trajectories):,}: trajectories of fewer than {recipe.fewest_characters:,} characters, "
            f"too short by {recipe.chars_per_token:g} characters a token (option chars_per_token)"
        )
    return trajectories, notes


def _built(
    path: str,
    trajectories: list[Trajectory],
    recipe: Recipe,
    tokenizer: str | None,
    wanted: int,
    offset: int,
    workers: int,
    notes: list[str],
) -> Workload:
    try:
        cuts = cut_all(trajectories, recipe, load_tokenizer(tokenizer)[0], wanted, offset, workers) if trajectories else []
    except TokenizerError as error:
        raise fault(path, str(error), field="option tokenizer") from None
    if not cuts:
        raise fault(path, "; ".join(["gives no conversation of the lengths asked for (option first_turn_length)", *notes]))
    if len(cuts) < wanted:
        notes.append(f"{len(cuts):,} instead of {wanted:,} conversations: no other trajectory is long enough")
    sessions = []
    for made in cuts:
        turns = (Turn(messages=tuple({"role": "user", "content": text} for text in turn)) for turn in made.turns)
        sessions.append(conversation(f"trajectory_{made.line}", tuple(turns), made.line))
    return Workload.of_roots(FORMAT.name, path, sessions, notes)


def recognises(keys: Collection[str]) -> bool:
    """Return whether an object with these keys is of this format."""
    known = set(keys)
    prepared = "conversations" in known and "conversations.from" not in known
    return prepared or ("messages" in known and bool(known & {"traj_id", "instance_id"}))


FORMAT = Format(
    name="swe_smith",
    summary="conversations with a code-repairing agent: prepared, or cut from recorded trajectories by length",
    needs="one object {\"conversations\": [[{\"messages\": [...]}]]}, or 'messages' and 'traj_id' on every line",
    recognises=recognises,
    load=load,
    order=30,
    options=(
        Option("first_turn_length", "range", "tokens of the first turn", (65_000, 65_000), minimum=1),
        Option("subsequent_turn_length", "range", "tokens that each further turn adds", (500, 500), minimum=1),
        Option("min_turns", "integer", "fewest turns of a conversation cut from a trajectory", 1, minimum=1),
        MAX_TURNS,
        Option("chars_per_token", "number", "estimate by which trajectories too short are passed over", 3.0),
        Option("num_workers", "integer", "threads that cut trajectories", 4, minimum=1, maximum=256),
        Option("conversations", "integer", "how many to cut, unless --num-conversations says", _CONVERSATIONS, minimum=1),
        Option("seed", "integer", "of the order of trajectories and of draws", 0, minimum=-(2**63), maximum=2**63),
        TOKENIZER,
        SKIP_BAD_LINES,
        DATASET_OFFSET,
    ),
    aliases=("sglang_agentic_trace",),
    fetch="tool-*.parquet of huggingface.co/datasets/SWE-bench/SWE-smith-trajectories, write its rows as JSON lines",
)

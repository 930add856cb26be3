"""Agents' recorded trajectories cut into conversations of given token lengths, as evalscope builds its swe_smith data.

Only what a user or a tool said is taken; the live replies take the assistant's places. A turn is filled with whole messages
up to its target; the message that would exceed it is cut there and the rest of it is thrown away. The next turn goes on with
the next message. A trajectory that runs out of messages before its last turn begins is not used; one that ends within its
last turn is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from llmirage_client.workload.checking import Checker, kind_of
from llmirage_client.workload.conversation_lines import required
from llmirage_client.workload.files import JsonFault, parse
from llmirage_shared.tokens import Tokenizer

Range = tuple[int, int]


@dataclass(slots=True, frozen=True)
class Recipe:
    """How conversations are cut; ranges are inclusive and drawn anew for each trajectory, lengths are in tokens.

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
    """A row with `messages`, a list or JSON text of one; None when it is faulty, or too short, which is no fault."""
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
    entries = check.items(messages, "messages", may_be_empty=False)
    texts = tuple(_user_texts(entries or [], check))
    if check.problems or size < fewest_characters or sum(map(len, texts)) < fewest_characters:
        return None
    return Trajectory(check.line or 0, texts)


def _user_texts(messages: Sequence[Any], check: Checker) -> Iterator[str]:
    for i, entry in enumerate(messages):
        message = check.mapping(entry, f"messages.{i}")
        if message is None or not required(check, message, "role", f"messages.{i}."):
            continue
        role = check.text(message["role"], f"messages.{i}.role")
        text = _text(message.get("content"), f"messages.{i}.content", check)
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
    """The first `wanted` conversations of the shuffled trajectories from number `offset` on; the same for any `workers`."""
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
    """The conversation that a trajectory gives, None when it is too short; its draws depend on the seed and its line."""
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
    """Messages of `target` tokens together, the last one cut; and how many tokens are missing when the texts run out."""
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

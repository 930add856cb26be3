"""random_multi_turn: conversations drawn from given ranges; no file. Documented by evalscope.

Every conversation has its own random numbers, so the first ones do not depend on how many there are, and an offset leads to
others than a run from the start has had.
"""

from __future__ import annotations

import random

from llmirage_client.workload.conversation_lines import conversation
from llmirage_client.workload.format import Format, never
from llmirage_client.workload.format_options import DATASET_OFFSET, Option
from llmirage_client.workload.hash_blocks import key_of
from llmirage_client.workload.session import Problem, SyntheticUser, Turn, Workload, WorkloadError

_CONVERSATIONS = 100


def load(
    path: str,
    *,
    max_turns: int,
    min_turns: int,
    min_prompt_length: int,
    max_prompt_length: int,
    prefix_length: int,
    conversations: int,
    seed: int,
    dataset_offset: int,
) -> Workload:
    """`conversations` of them from number dataset_offset on. Raises WorkloadError when a range ends before it begins."""
    spans = {"turns": (min_turns, max_turns), "prompt_length": (min_prompt_length, max_prompt_length)}
    problems = [
        Problem(f"{low} is more than max_{name} {high}", field=f"option min_{name}")
        for name, (low, high) in spans.items()
        if low > high
    ]
    if problems:
        raise WorkloadError(path, problems)
    sessions = []
    for number in range(dataset_offset, dataset_offset + conversations):
        draw = random.Random(f"{seed}/{number}")
        key = key_of("random", seed, number)
        turns = []
        for i in range(draw.randint(min_turns, max_turns)):
            tokens = max(1, draw.randint(min_prompt_length, max_prompt_length))  # a message of no tokens is none
            turns.append(Turn(synthetic=SyntheticUser(tokens, key + i, prefix_length)))
        sessions.append(conversation(f"conversation_{number + 1}", tuple(turns)))
    return Workload.of_roots(FORMAT.name, path, sessions)


FORMAT = Format(
    name="random_multi_turn",
    summary="synthetic conversations, drawn from ranges of turns and message lengths; needs no file",
    needs="no file: give its name instead, and the option max_turns",
    recognises=never,
    load=load,
    order=200,
    generates=True,
    options=(
        Option("max_turns", "integer", "most turns of a conversation", minimum=1, required=True),
        Option("min_turns", "integer", "fewest turns of a conversation", 1, minimum=1),
        Option("min_prompt_length", "integer", "fewest tokens of a user message", 0),
        Option("max_prompt_length", "integer", "most tokens of a user message", 131_072, minimum=1),
        Option("prefix_length", "integer", "tokens that every user message begins with, besides its own", 0),
        Option("conversations", "integer", "how many there are, unless --num-conversations says", _CONVERSATIONS, minimum=1),
        Option("seed", "integer", "of the draws", 0, minimum=-(2**63), maximum=2**63),
        DATASET_OFFSET,
    ),
)

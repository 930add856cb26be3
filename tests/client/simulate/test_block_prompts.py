"""Prompts of hash blocks as ids: those that the endpoint makes of each prompt's text."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.simulate.block_prompts import BlockPrompts, Frame
from llmirage_client.workload.hash_blocks import block_content
from llmirage_client.workload.session import Session, SyntheticUser, Turn
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded

BLOCK_TOKENS = 4
TEXT = SyntheticText(embedded(), 3)
FRAME = Frame(b"HEAD", b"TAIL", b"", b"", (b"", b""))

# By turn: blocks kept of the turn before, further ones, tokens behind the blocks or short of the last one's end.
turns = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1 - BLOCK_TOKENS, 9)), min_size=1, max_size=40)


def session_of(drawn: list[tuple[int, int, int]], first_id: int) -> Session:
    blocks: list[int] = []
    made = []
    for number, (cut, more, beyond) in enumerate(drawn):
        blocks = blocks[: len(blocks) - cut if cut < 3 else None]
        blocks = blocks + [first_id + 100 * number + i for i in range(more)]
        tokens = max(len(blocks) * BLOCK_TOKENS + beyond, 1)
        message = SyntheticUser(tokens, number - 5, block_ids=np.array(blocks, dtype=np.int64), block_tokens=BLOCK_TOKENS)
        made.append(Turn(synthetic=message, max_tokens=2, min_tokens=2))
    return Session(f"s{first_id}", tuple(made), "isolated")


def ids_of(message: SyntheticUser) -> bytes:
    assert message.block_ids is not None
    content = block_content(message.block_ids, message.block_tokens, message.tokens, message.key)
    return embedded().encode(TEXT.text_for_ids(content)).tobytes()


@given(turns, turns, st.randoms(use_true_random=False))
def test_prompts_have_the_ids_of_their_texts_in_any_order(one: Any, other: Any, order: Any) -> None:
    sessions = [session_of(one, 0), session_of(other, 10_000)]
    prompts = BlockPrompts(TEXT, FRAME, None, lambda _: np.empty(0, dtype=np.int32))
    asked = [(session, index) for session in sessions for index in range(len(session.turns))]
    again = asked.copy()
    order.shuffle(again)
    for session, index in [*asked, *again]:
        conversation: Any = SimpleNamespace(session=session, reply_tokens=None, number=index, marker="")
        key, tokens = prompts.plan(conversation, index)
        message = session.turns[index].synthetic
        assert message is not None
        assert key[: tokens * 4] == FRAME.head + ids_of(message) + FRAME.tail

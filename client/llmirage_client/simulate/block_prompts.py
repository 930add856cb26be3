"""Prompts of hash blocks as the token ids that the server's chat endpoint makes of them, without their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import RunOptions
from llmirage_client.load.variation import Variation, variation_of
from llmirage_client.simulate.token_streams import TokenPrompt, TokenStreams
from llmirage_client.workload.hash_blocks import NO_BLOCKS, growing_content
from llmirage_client.workload.request_graph import shared_blocks
from llmirage_client.workload.session import Session, SyntheticUser, Workload
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load

_MARKS = ("<<0>>", "<<1>>", "<<2>>")  # stand for contents in a rendered prompt
_TRIED_TOKENS = 64
_ID_BYTES = np.dtype(np.int32).itemsize
_RECENT_CONTENTS = 128  # of sessions whose next prompt probably begins as their last one
_TURNS_AHEAD = 16  # whose contents are written together: numpy's calls take longer than what they do for one
_Pieces = tuple[bytes | memoryview, ...]


@dataclass(slots=True, frozen=True)
class Frame:
    """The tokens that the chat template puts around contents, as bytes of ids.

    head: before the first message of the user.
    tail: after the last one, up to where the reply begins.
    after_reply: between a reply and the next message.
    after_message: between two messages, the first of which has no reply.
    system: before a system message, and between it and the first message of the user.
    """

    head: bytes
    tail: bytes
    after_reply: bytes
    after_message: bytes
    system: tuple[bytes, bytes]


@dataclass(slots=True, frozen=True)
class _Contents:
    """The contents of turns that follow each other, each of which begins with the blocks of the one before.

    blocks: of the last of them. ids: of these, as bytes. turns: the message of each and the ids behind its blocks, by index.
    """

    blocks: npt.NDArray[np.int64]
    ids: memoryview
    turns: Mapping[int, tuple[SyntheticUser, bytes]]


_NO_CONTENTS = _Contents(NO_BLOCKS, memoryview(b""), {})


class BlockPrompts:
    """The prompts of turns that are hash blocks alone, in chat messages. Replies are arbitrary unique ids."""

    def __init__(
        self, text: SyntheticText, frame: Frame, variation: Variation | None, encode: Callable[[str], npt.NDArray[np.int32]]
    ) -> None:
        self._encode = encode
        self._text = text
        self._frame = frame
        self._variation = variation
        self._replies = TokenStreams(shares=False)
        # By unfinished conversation: all before the next message's content, with the last reply and without it.
        self._histories: dict[int, tuple[_Pieces, _Pieces]] = {}
        self._recent: dict[tuple[str, int], _Contents] = {}  # of each repeat of a session

    def plan(self, conversation: Conversation, turn_index: int) -> TokenPrompt:
        session, frame = conversation.session, self._frame
        message, content = self._content(session, turn_index)
        output_tokens = session.turns[turn_index].max_tokens
        assert output_tokens is not None
        if conversation.reply_tokens is not None:
            output_tokens = conversation.reply_tokens
        before, _ = self._histories.pop(conversation.number, ((), ()))
        if not before:
            marker = self._encode(conversation.marker).tobytes() if conversation.marker else b""
            before = frame.head, marker
            if cut := message.system_tokens * _ID_BYTES:
                whole = memoryview(b"".join(content))
                before, content = (frame.system[0], whole[:cut], frame.system[1], marker), (whole[cut:],)
                if cut == len(whole):  # no message of the user, which the marker would begin
                    before, content = (frame.system[0],), (whole,)
        pieces = (*before, *content)
        end = sum(map(len, pieces))
        key = b"".join((*pieces, frame.tail, self._replies.stretch(output_tokens)))  # long prompts are copied once
        if turn_index + 1 < len(session.turns) and session.mode == "accumulate":
            self._histories[conversation.number] = (key, frame.after_reply), (memoryview(key)[:end], frame.after_message)
        return key, (end + len(frame.tail)) // _ID_BYTES

    def failed(self, conversation: Conversation) -> None:
        """Note that the last call had no reply."""
        if (known := self._histories.get(conversation.number)) is not None:
            _, without = known
            self._histories[conversation.number] = without, without

    def _content(self, session: Session, index: int) -> tuple[SyntheticUser, _Pieces]:
        """Return the message of a turn, and its ids: those of its blocks, and those behind them."""
        place = session.id, session.repeat
        known = self._recent.pop(place, _NO_CONTENTS)
        if index not in known.turns:
            known = self._written(session, index, known)
        if index + 1 < len(session.turns):
            self._recent[place] = known
            if len(self._recent) > _RECENT_CONTENTS:
                del self._recent[next(iter(self._recent))]
        message, tail = known.turns[index]
        in_blocks = message.tokens - len(tail) // _ID_BYTES
        return message, (known.ids[: in_blocks * _ID_BYTES], tail)

    def _written(self, session: Session, first: int, before: _Contents) -> _Contents:
        """Return the contents of a turn and of those that follow as it grows. before: others of the session."""
        messages: list[SyntheticUser] = []
        tails: list[tuple[int, int]] = []  # key and length
        blocks, block_tokens = NO_BLOCKS, 0
        for index in range(first, min(first + _TURNS_AHEAD, len(session.turns))):
            message = self._message(session, index)
            assert message.block_ids is not None
            if messages and (not len(blocks) or shared_blocks(blocks, message.block_ids) < len(blocks)):
                break
            blocks, block_tokens = message.block_ids, message.block_tokens
            messages.append(message)
            tails.append((message.key, max(message.tokens - len(blocks) * block_tokens, 0)))
        kept = shared_blocks(before.blocks, blocks)
        ids = growing_content(blocks[kept:], block_tokens, tails)
        written = self._text.word_ids(ids, begins=not kept).tobytes()
        turns = {}
        own = end = (len(blocks) - kept) * block_tokens * _ID_BYTES
        for index, (message, (_, tokens)) in enumerate(zip(messages, tails, strict=True), start=first):
            start, end = end, end + tokens * _ID_BYTES
            turns[index] = message, written[start:end]
        same = before.ids[: kept * block_tokens * _ID_BYTES]
        return _Contents(blocks, memoryview(b"".join((same, memoryview(written)[:own]))), turns)

    def _message(self, session: Session, index: int) -> SyntheticUser:
        turn = session.turns[index] if self._variation is None else self._variation.turn(session, index)
        assert turn.synthetic is not None
        return turn.synthetic


def block_prompts(workload: Workload, options: RunOptions) -> BlockPrompts | None:
    """Return the prompts of a workload of hash blocks alone; None if it has others, or the template does more than frame.

    Raises TokenizerError when the tokenizer cannot be loaded or nothing can be written in its vocabulary.
    """
    alone = False  # a prompt is a system message alone
    for session in workload.sample:
        if session.mode not in ("accumulate", "isolated") or session.pre_session_spawns:
            return None
        for turn in session.turns:
            if turn.synthetic is None or turn.synthetic.block_ids is None or turn.messages or turn.tools:
                return None
            if any(branch.kind == "fork" for branch in turn.branches):
                return None
            alone |= turn.synthetic.system_tokens == turn.synthetic.tokens
            if turn.max_tokens is None or turn.max_tokens != turn.min_tokens or turn.extra or turn.model:
                return None
    of_tokenizer, template = load(options.tokenizer)
    text = SyntheticText(of_tokenizer)
    encoder = PromptEncoder(of_tokenizer, template)
    marker = f"[rid:{'0123456789ab'}]\n\n" if options.lanes is not None and options.lanes.marks else ""
    frame = _frame(encoder, text, marker, alone)
    return None if frame is None else BlockPrompts(text, frame, variation_of(workload, options), encoder.encode)


def _frame(encoder: PromptEncoder, text: SyntheticText, marker: str, alone: bool) -> Frame | None:
    """Return the template's frame around contents; None where a prompt is more than its frame and its contents.

    marker: a text before the first message of the user. alone: some prompts are a system message alone.
    """

    def said(*contents: tuple[str, str]) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in contents]

    def framed(*roles: str) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        rest, parts = encoder.render(said(*zip(roles, _MARKS, strict=False))), []
        for mark in _MARKS[: len(roles)]:
            part, _, rest = rest.partition(mark)
            parts.append(encoder.encode(part))
        return [*parts, encoder.encode(rest)]

    numbers = np.arange(_TRIED_TOKENS, dtype=np.int32)
    one, two = text.word_ids(numbers), text.word_ids(numbers + 7)
    reply, replied = text.ids(1, _TRIED_TOKENS), text.text(1, _TRIED_TOKENS)
    words = text.text_for_ids(numbers), text.text_for_ids(numbers + 7)
    try:
        head, tail = framed("user")
        _, _, after_reply, _ = framed("user", "assistant", "user")
        _, after_message, _ = framed("user", "user")
        before_system, after_system, _ = framed("system", "user")
        whole = encoder.encode_chat(said(("user", words[0]), ("assistant", replied), ("user", words[1])))
        failed = encoder.encode_chat(said(("user", words[0]), ("user", words[1])))
        marked = encoder.encode_chat(said(("system", words[0]), ("user", marker + words[1])))
        system_alone = encoder.encode_chat(said(("system", words[0]))) if alone else None
    except ValueError:  # a template that refuses such a history
        return None
    as_composed = np.concatenate([head, one, tail, reply, after_reply, two, tail])
    if not np.array_equal(whole, as_composed):
        return None
    if not np.array_equal(failed, np.concatenate([head, one, after_message, two, tail])):
        return None
    if not np.array_equal(marked, np.concatenate([before_system, one, after_system, encoder.encode(marker), two, tail])):
        return None
    if system_alone is not None and not np.array_equal(system_alone, np.concatenate([before_system, one, tail])):
        return None
    system = before_system.tobytes(), after_system.tobytes()
    return Frame(head.tobytes(), tail.tobytes(), after_reply.tobytes(), after_message.tobytes(), system)

"""The request of each turn, by its session's mode, with texts given by their length written out.

Long prompts are written in threads, so that no other request waits for them, and where possible before they are due.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

from llmirage_client.load.calls import Planned, TokenCalls, message_call, prompt_as_ids, thread_of, verbatim_call
from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.history import Thread, forget
from llmirage_client.load.options import RunOptions
from llmirage_client.load.variation import Variation
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints import endpoint_named
from llmirage_client.workload.hash_blocks import block_content
from llmirage_client.workload.session import Session, SyntheticUser, Turn, Workload
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load
from llmirage_shared.virtual_time import SimulatedTimeLoop


class CallPlanner:
    """The planner for an endpoint's API. Token turns need a tokenizer, which is loaded when the first of them comes."""

    def __init__(self, options: RunOptions, variation: Variation | None = None) -> None:
        """Create a planner. variation: of the tokens of repeats; None: there are no numbered ones."""
        self._options = options
        self._variation = variation
        self._endpoint = endpoint_named(options.endpoint_type or "chat", options.tokenizer)

    def prepare(self, workload: Workload) -> None:
        """Load the tokenizer before the first request where there are texts to write. Raises TokenizerError."""
        turns = [turn for session in workload.sessions.values() for turn in session.turns]
        if any(turn.synthetic is not None for turn in turns):
            self._synthetic_turns.prepare()
        if any(turn.tokens is not None and not prompt_as_ids(turn.tokens, self._options) for turn in turns):
            self._token_calls.prepare()

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        session = conversation.session
        turn = session.turns[turn_index] if self._variation is None else self._variation.turn(session, turn_index)
        if conversation.reply_tokens is not None:
            turn = replace(turn, max_tokens=conversation.reply_tokens, min_tokens=conversation.reply_tokens)
        if session.salted and not turn_index:
            turn = replace(turn, messages=_salted(turn.messages, session))
        planned = self._planned(conversation, turn)
        planned.call.affinity_id = conversation.affinity_id
        planned.call.empty_ok = session.ends_on_failure  # evalscope's rules, which have both
        return planned

    def replied(self, conversation: Conversation, planned: Planned, exchange: Exchange) -> None:
        """Append the live reply to the history."""
        thread, session = conversation.thread, conversation.session
        if thread is None:
            return
        if conversation.turn_index == len(session.turns) - 1:
            forget(thread.history)  # it goes out no more, but for forks; the bodies of the run are kept and would keep it
        thread.add_reply(exchange, session.mode)

    def _planned(self, conversation: Conversation, turn: Turn) -> Planned:
        match conversation.session.mode:
            case "verbatim":
                return Planned(verbatim_call(turn, self._options))
            case "tokens":
                return self._token_calls.plan(conversation, turn)
            case _:
                asked = None
                if turn.synthetic is not None:
                    alone = not turn.messages and not thread_of(conversation).history
                    asked = turn.synthetic.tokens + turn.synthetic.prefix_tokens if alone else None
                    turn = self._synthetic_turns.written(turn, turn.synthetic)
                if conversation.marker:
                    turn = replace(turn, messages=_marked(turn.messages, conversation.marker))
                call = message_call(conversation, turn, self._options, self._endpoint)
                return Planned(call, output_tokens=turn.min_tokens, input_tokens_asked=asked)

    @cached_property
    def _synthetic_turns(self) -> SyntheticTurns:
        return SyntheticTurns(self._options)

    @cached_property
    def _token_calls(self) -> TokenCalls:
        return TokenCalls(self._options)


def _marked(messages: Sequence[Mapping[str, Any]], marker: str) -> tuple[Mapping[str, Any], ...]:
    """Return the messages with a marker before the text of the first one of the user."""
    place = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if place is None:
        return tuple(messages)
    marked = {**messages[place], "content": marker + messages[place]["content"]}
    return (*messages[:place], marked, *messages[place + 1 :])


def _salted(messages: Sequence[Mapping[str, Any]], session: Session) -> tuple[Mapping[str, Any], ...]:
    """Return the messages with salts around the system message, as MLPerf Endpoints makes them."""
    repeat, own = (
        hashlib.blake2b(text.encode(), digest_size=2).hexdigest() for text in (str(session.repeat + 1), session.id)
    )
    system, *rest = messages
    return {**system, "content": f"[salt: {repeat}]\n\n{system['content']}\n\n[salt: {own}]"}, *rest


_PREFIX_KEY = 0x7072_6566_6978
_ROUNDS_TO_MEET_A_COUNT = 8


class SyntheticTurns:
    """The writer of texts given by their length. Loads the tokenizer when created. Raises TokenizerError if that fails."""

    def __init__(self, options: RunOptions) -> None:
        self._tokenizer = load(options.tokenizer)[0]
        self._text = SyntheticText(self._tokenizer, options.seed or 0)

    def prepare(self) -> None:
        """Load the vocabulary. Raises TokenizerError."""
        self._text.prepare()

    def written(self, turn: Turn, message: SyntheticUser) -> Turn:
        """Return the turn with its synthetic message as text. Raises TokenizerError for an unsuitable vocabulary."""
        said: list[Mapping[str, Any]] = []
        if message.system_tokens and message.block_ids is not None:
            ids = block_content(message.block_ids, message.block_tokens, message.tokens, message.key)
            parts = ("system", ids[: message.system_tokens]), ("user", ids[message.system_tokens :])
            said = [{"role": role, "content": self._text.text_for_ids(part)} for role, part in parts if len(part)]
        else:
            said = [{"role": "user", "content": self._content(message)}]
        return replace(turn, messages=(*turn.messages, *said))

    def _content(self, message: SyntheticUser) -> str:
        if message.block_ids is not None:
            ids = block_content(message.block_ids, message.block_tokens, message.tokens, message.key)
            return self._text.text_for_ids(ids)
        if not message.prefix_tokens:
            return self._text.text(message.key, message.tokens)
        prefix = self._text.text(_PREFIX_KEY, message.prefix_tokens)
        total = message.prefix_tokens + message.tokens
        room = message.tokens
        text = prefix
        for _ in range(_ROUNDS_TO_MEET_A_COUNT):  # a token may be one with its neighbour where the two texts meet
            text = f"{prefix} {self._text.text(message.key, room)}"
            missing = total - len(self._tokenizer.encode(text))
            if not missing:
                break
            room = max(room + missing, 0)
        return text


def written_out(workload: Workload, tokenizer: str | None, seed: int) -> Workload:
    """Return the workload with texts that are given by their length written out as a run would write them.

    tokenizer: folder or hub name, None for the one in the package. Raises TokenizerError when it cannot be used.
    """
    texts = SyntheticTurns(RunOptions(tokenizer=tokenizer, seed=seed))

    def with_text(turn: Turn) -> Turn:
        return turn if turn.synthetic is None else replace(texts.written(turn, turn.synthetic), synthetic=None)

    sessions = {
        name: replace(session, turns=tuple(map(with_text, session.turns))) for name, session in workload.sessions.items()
    }
    return replace(workload, sessions=sessions)


_LONG_TOKENS = 512  # take a millisecond or more
_MOST_AHEAD = 64  # prompts
_MOST_TOKENS_AHEAD = 1 << 18  # of several prompts; so much is written before a phase begins
_NOT_SPLIT = ("server_conversation", "server_state")  # their requests name the conversation or its last reply

_Draft = Future[tuple[Planned, Thread | None]]
_Key = tuple[str, int]


class PromptsAhead:
    """The writer of long prompts, beside the planner of a run. Both give the same requests.

    The first turns of roots are written in their order, up to a number of prompts and of tokens ahead of those that have
    been sent; a later turn as soon as it has the reply before it. What is due and not yet begun goes before these. Create it
    on the running loop; in virtual time nothing is written ahead, and it takes no time.
    """

    def __init__(self, planner: CallPlanner, options: RunOptions, identifiers: Identifiers) -> None:
        self._planner = planner
        self._options = options
        self._identifiers = identifiers
        self._real_time = not isinstance(asyncio.get_running_loop(), SimulatedTimeLoop)
        self._upcoming: Callable[[int], list[Session]] | None = None
        self._drafts: dict[_Key, tuple[Session, _Draft]] = {}
        self._next: dict[int, Future[Planned]] = {}  # by the conversation's number
        self._ahead = ThreadPoolExecutor(1, "prompts-ahead")
        self._due = ThreadPoolExecutor(2, "prompts-due")

    async def begin(self, upcoming: Callable[[int], list[Session]]) -> None:
        """Write the first prompts of a phase whose next roots `upcoming` returns."""
        self._drafts.clear()
        self._next.clear()
        self._upcoming = upcoming if self._real_time and self._options.lanes is None else None
        self._write_roots()
        await asyncio.gather(*(asyncio.wrap_future(draft) for _, draft in self._drafts.values()), return_exceptions=True)

    def is_long(self, turn: Turn) -> bool:
        """Return whether `plan` is to be awaited for the turn."""
        return self._real_time and self._tokens(turn) >= _LONG_TOKENS

    async def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        """Return the request of a turn. Raises one of load.calls.CONTENT_ERRORS where there can be none."""
        root = not turn_index and conversation.parent is None
        draft = self._draft_of(conversation) if root else None
        if root:
            self._write_roots()
        if draft is not None:
            planned, conversation.thread = await asyncio.wrap_future(draft)
            planned.call.affinity_id = conversation.affinity_id
            return planned
        planning = self._next.pop(conversation.number, None)
        if planning is None:
            planning = self._due.submit(self._planner.plan, conversation, turn_index)
        return await asyncio.wrap_future(planning)

    def replied(self, conversation: Conversation) -> None:
        """Write the next turn of a conversation that has its reply, where nothing else can change its history."""
        session, index = conversation.session, (conversation.turn_index or 0) + 1
        if index >= len(session.turns) or self._options.lanes is not None or len(self._next) >= _MOST_AHEAD:
            return
        if self.is_long(session.turns[index]) and not (session.turns[index - 1].branches or session.turns[index].branches):
            self._next[conversation.number] = self._due.submit(self._planner.plan, conversation, index)

    def close(self) -> None:
        """Write no more."""
        for executor in (self._ahead, self._due):
            executor.shutdown(wait=False, cancel_futures=True)

    def _tokens(self, turn: Turn) -> int:
        """Return the tokens that have to be written for a turn."""
        if turn.tokens is not None:
            return 0 if prompt_as_ids(turn.tokens, self._options) else turn.tokens.input_tokens
        return 0 if turn.synthetic is None else turn.synthetic.tokens + turn.synthetic.prefix_tokens

    def _write_roots(self) -> None:
        """Have the first turns of the next roots written."""
        if self._upcoming is None:
            return
        tokens = 0
        for session in self._upcoming(_MOST_AHEAD):
            own = self._tokens(session.turns[0]) if self._has_draft(session) else 0
            if own < _LONG_TOKENS:
                continue
            if tokens and tokens + own > _MOST_TOKENS_AHEAD:
                break
            tokens += own
            if _key(session) not in self._drafts:
                self._drafts[_key(session)] = session, self._ahead.submit(self._draft, session)
        while len(self._drafts) > 2 * _MOST_AHEAD:  # of roots that have begun without sending it
            del self._drafts[next(iter(self._drafts))]

    def _has_draft(self, session: Session) -> bool:
        """Return whether the first request depends on the session alone."""
        fresh = session.mode == "tokens" and self._options.session_prefix == "none"
        return bool(session.turns) and session.mode not in _NOT_SPLIT and not fresh

    def _draft(self, session: Session) -> tuple[Planned, Thread | None]:
        stand_in = Conversation(session, 0, self._identifiers, ("draft",))
        return self._planner.plan(stand_in, 0), stand_in.thread

    def _draft_of(self, conversation: Conversation) -> _Draft | None:
        session = conversation.session
        known, draft = self._drafts.pop(_key(session), (None, None))
        if known is None or draft is None or draft.cancel():  # not begun: others may be due before those in front of it
            return None
        same = known.turns[0] is session.turns[0] and len(known.turns) == len(session.turns)
        return draft if same else None


def _key(session: Session) -> _Key:
    return session.id, session.repeat

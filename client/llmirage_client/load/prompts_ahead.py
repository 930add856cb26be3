"""Long prompts written in threads, so that no other request waits for them, and where possible before they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from llmirage_client.load.calls import Planned, prompt_as_ids
from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.history import Thread
from llmirage_client.load.options import RunOptions
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.workload.session import Session, Turn
from llmirage_shared.virtual_time import SimulatedTimeLoop

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

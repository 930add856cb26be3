"""Makes conversations: roots, and children as their branch kind says."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from llmirage_client.load.conversation import Conversation, RequestTree
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.share import Share
from llmirage_client.workload.session import BranchKind, Round, Session, ThinkTime, Workload


class Family:
    """The conversations of a run: no two have a number in common, nor do those of several shares.

    awaited: session and turn of the requests for which turns of other sessions wait.
    """

    def __init__(self, workload: Workload, identifiers: Identifiers, share: Share | None = None) -> None:
        self._sessions = workload.sessions
        self._identifiers = identifiers
        self.awaited = {(each.session, each.turn) for session in workload.sessions.values() for turn in session.turns
                        for each in turn.after}  # fmt: skip
        share = share or Share()
        self._next, self._step = share.index, share.of

    def root(self, session: Session, *place: object) -> Conversation:
        number = self._next
        self._next = number + self._step
        conversation = Conversation(session, number, self._identifiers, place)
        if self.awaited:
            conversation.tree = RequestTree()
        return conversation

    def child(self, parent: Conversation, session_id: str, kind: BranchKind, *place: object) -> Conversation:
        """A fork continues its parent: history and tools so far, and its affinity. A spawn starts from nothing."""
        session = self._of_repeat(session_id, parent)
        name = (kind, session_id, *place)
        child = Conversation(session, self._number(), self._identifiers, name, parent, kind, parent.depth + 1)
        if child.tree is not None:
            child.tree.started.add(session_id)
        if kind == "fork" and parent.thread is not None:
            child.thread = parent.thread.forked(session.mode)
        return child

    def pre_session_child(self, root: Conversation, session_id: str, *place: object) -> Conversation:
        """Started before the first turn of `root`; nothing waits for it and it has no parent."""
        name = (root, "pre", session_id, *place)
        return Conversation(
            self._of_repeat(session_id, root), self._number(), self._identifiers, name, None, "spawn", depth=1
        )

    def abandon(self, tree: RequestTree, session_id: str, now_s: float, turn: int = 0) -> None:
        """Let nobody wait for the turns of a session from that one on, nor for sessions that they would have started."""
        left = [(session_id, turn)]
        while left:
            name, first = left.pop()
            turns = self._sessions[name].turns
            for index in range(first, len(turns)):
                if (name, index) in self.awaited:
                    tree.note(name, index, "dispatch", now_s)
                    tree.note(name, index, "reply", now_s)
                children = [child for branch in turns[index].branches for child in branch.children]
                left += [(child, 0) for child in children if child not in tree.started]

    def _of_repeat(self, session_id: str, parent: Conversation) -> Session:
        session, repeat = self._sessions[session_id], parent.session.repeat
        return replace(session, repeat=repeat) if repeat else session

    def _number(self) -> int:
        number = self._next
        self._next += self._step
        return number


def think_time_s(round_: Round, think_time: ThinkTime | None, rng: random.Random) -> float:
    """The pause before a round: its median with the session's lognormal spread around it, within the session's bounds."""
    if think_time is None:
        return round_.think_time_s
    pause_s = round_.think_time_s * math.exp(rng.gauss(0.0, think_time.sigma))
    return min(max(pause_s, think_time.min_s), think_time.max_s)

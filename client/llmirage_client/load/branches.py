"""Children of conversations: who starts them, who waits for them, and what is counted."""

from __future__ import annotations

import math
import random

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.share import Share
from llmirage_client.workload.session import BranchKind, Round, Session, ThinkTime, Workload


class Family:
    """Makes conversations: roots, and children as their branch kind says. No two shares have a number in common."""

    def __init__(self, workload: Workload, identifiers: Identifiers, share: Share | None = None) -> None:
        self._sessions = workload.sessions
        self._identifiers = identifiers
        self._share = share or Share()
        self._made = 0

    def root(self, session: Session, *place: object) -> Conversation:
        own_id = self._identifiers.make("conversation", *place)
        return self._conversation(session, own_id, own_id, own_id)

    def child(self, parent: Conversation, session_id: str, kind: BranchKind, *place: object) -> Conversation:
        """A fork continues its parent: history and tools so far, and its affinity. A spawn starts from nothing."""
        own_id = self._identifiers.make("conversation", parent.correlation_id, kind, session_id, *place)
        affinity_id = parent.affinity_id if kind == "fork" else own_id
        child = self._conversation(self._sessions[session_id], own_id, affinity_id, parent.root_correlation_id, parent)
        child.branch_mode = kind
        child.parent_turn_index = parent.last_turn_index
        if kind == "fork":
            child.continue_from(parent)
        return child

    def pre_session_child(self, root: Conversation, session_id: str, *place: object) -> Conversation:
        """Started before the first turn of `root`; nobody waits for it and it knows no parent."""
        own_id = self._identifiers.make("conversation", root.correlation_id, "pre", session_id, *place)
        child = self._conversation(self._sessions[session_id], own_id, own_id, own_id)
        child.depth = 1
        child.branch_mode = "spawn"
        return child

    def _conversation(
        self, session: Session, own_id: str, affinity_id: str, root_id: str, parent: Conversation | None = None
    ) -> Conversation:
        number = self._share.index + self._share.of * self._made
        self._made += 1
        depth = parent.depth + 1 if parent else 0
        return Conversation(session, number, own_id, affinity_id, root_id, parent, depth)


def think_time_s(round_: Round, think_time: ThinkTime | None, rng: random.Random) -> float:
    """The pause before a round: its median with the session's lognormal spread around it, within the session's bounds."""
    if think_time is None:
        return round_.think_time_s
    pause_s = round_.think_time_s * math.exp(rng.gauss(0.0, think_time.sigma))
    return min(max(pause_s, think_time.min_s), think_time.max_s)

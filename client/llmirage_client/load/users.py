"""Users at a pace: each has a conversation of its own and sends the next turn of it so many seconds after the last."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import replace

from llmirage_client.load.arrivals import Arrivals, Start, Steps
from llmirage_client.load.share import Share
from llmirage_client.load.slots import Slots
from llmirage_client.load.stop import Stop
from llmirage_client.workload.session import Session


class Users(Arrivals):
    """`users` seats; who sits in one sends a turn every users / rate seconds, so that all together keep the rate.

    A turn goes out later than that when its reply or think time is: the pace then counts from there, and nothing is caught
    up. When a conversation would have sent its last turn the next user takes the seat, whether or not replies were slow.
    The users of the beginning are of all ages, as in a service that has run for long: seat i of n sends i / n of a
    conversation of mean length, from its first turn on, and seat 0 a whole one. As AIPerf's --user-centric-rate has it.
    """

    def __init__(
        self,
        roots: Iterator[Session],
        start: Start,
        stop: Stop,
        slots: Slots,
        users: int,
        rate_per_s: float,
        mean_turns: float,
        speed: float,
        share: Share | None = None,
    ) -> None:
        """rate_per_s: of all users together, in the time of the cluster. mean_turns: of the workload's roots.

        share: of the users.
        """
        super().__init__(roots, start, stop, slots)
        self._users = users
        self._share = share or Share()
        self._stagger_s = 1 / (rate_per_s * speed)
        self._gap_s = users / (rate_per_s * speed)
        self._turns = max(round(mean_turns) - 1, 1)

    def due_s(self, ready_s: float, previous_s: float) -> float | None:
        return max(ready_s, previous_s + self._gap_s)

    def steps(self) -> Steps:
        origin_s = self.stop.clock()
        self._slots.open(origin_s)
        seats = [
            (origin_s + place * self._stagger_s, turns)
            for place, turns in first_users(self._users, self._turns)
            if self._share.has(place)
        ]
        heapq.heapify(seats)
        while seats:
            due_s, turns = heapq.heappop(seats)
            yield from self.until(due_s)
            if not (yield from self.slot()) or (session := next(self.roots, None)) is None:
                return
            if turns is not None and turns < len(session.turns):
                session = replace(session, turns=session.turns[:turns])
            self.begin(session, due_s)
            heapq.heappush(seats, (due_s + max(len(session.turns), 1) * self._gap_s, None))


def first_users(users: int, turns: int) -> list[tuple[int, int | None]]:
    """For every seat its place in the order of starts, from 0, and how many turns its first user has left (None: all).

    Neighbours in the order differ in age, so that users leave at an even pace from the beginning.
    """
    step = next((step for step in (turns, *range(2, users)) if math.gcd(step, users) == 1), 1)
    return [(seat * step % users, -(-seat * turns // users) if seat else None) for seat in range(users)]

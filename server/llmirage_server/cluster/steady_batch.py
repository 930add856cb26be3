"""A batch of decoding sequences, known by sums: what a step of all of them needs, and who is done after which step.

Steps are numbered. All sequences of the batch gain a token with every step, so that a step costs the same to follow however
many there are. A sequence joins with the tokens that it has, and its own fields stand still until it leaves.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from llmirage_server.cluster.kv_cache import Sequence


class Member:
    """A sequence in the batch. first: number of the step that brought its first token here, `last`: the last one."""

    __slots__ = ("context_then", "first", "joined", "last", "sequence", "serial", "there")

    def __init__(self, sequence: Sequence, serial: int, joined: int, first: int) -> None:
        self.sequence = sequence
        self.first = first
        self.serial = serial  # the order in which the instance runs its sequences
        self.joined = joined  # number of its first decoding step
        self.context_then = sequence.tokens - 1  # what that step attends to
        self.last = joined + sequence.max_tokens - sequence.tokens - 1  # the step that brings its last token
        self.there = True

    def __lt__(self, other: Member) -> bool:
        return self.serial < other.serial


class SteadyBatch:
    """step: number of the next step. size, context_sum: of its sequences; a context is all tokens but for the last."""

    def __init__(self, page_size: int) -> None:
        self.step = 0
        self.size = 0
        self.context_sum = 0
        self._page = page_size
        self._members: dict[Sequence, Member] = {}
        self._ends: list[tuple[int, Member]] = []  # heap by last step, then by order
        self._longest: list[tuple[int, int, Member]] = []  # heap by what the longest has more than the number of a step
        self._pages = [0] * page_size  # sequences that need a page, by the step's number modulo the page size
        self._serial = count()

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    @property
    def longest(self) -> int:
        """The longest context of the next step."""
        longest = self._longest
        while not longest[0][2].there:
            heappop(longest)
        return self.step - longest[0][0]

    @property
    def next_last(self) -> int:
        """The number of the first step after which someone is done."""
        return self._ends[0][0]

    def join(self, sequence: Sequence, first: int) -> None:
        """From the next step on, after all that joined before. first: the step that brought the token it has now."""
        member = self._members[sequence] = Member(sequence, next(self._serial), self.step, first)
        context = member.context_then
        self.size += 1
        self.context_sum += context
        heappush(self._ends, (member.last, member))
        heappush(self._longest, (self.step - context, member.serial, member))
        self._pages[(self.step - context) % self._page] += 1

    def pages(self, steps: int = 1) -> int:
        """New pages that the next so many steps need."""
        if steps == 1:
            return self._pages[self.step % self._page]
        cycles, rest = divmod(steps, self._page)
        pages = cycles * self.size
        for step in range(self.step, self.step + rest):
            pages += self._pages[step % self._page]
        return pages

    def steps_within(self, pages: int, steps: int) -> int:
        """How many of the next `steps` steps so many new pages are enough for."""
        if self.pages(steps) <= pages:
            return steps
        enough = pages // self.size * self._page
        left = pages - pages // self.size * self.size
        while enough < steps and (needed := self._pages[(self.step + enough) % self._page]) <= left:
            left -= needed
            enough += 1
        return enough

    def advance(self, steps: int = 1) -> None:
        """So many steps are over."""
        self.step += steps
        self.context_sum += steps * self.size

    def take_done(self) -> list[Member]:
        """Who is done after the step that is just over, in their order; their sequences have all their tokens now."""
        done = []
        over = self.step - 1
        while self._ends and self._ends[0][0] <= over:
            member = heappop(self._ends)[1]
            done.append(member)
            self._leave(member)
            sequence = member.sequence
            sequence.tokens = sequence.max_tokens
            sequence.computed = sequence.max_tokens - 1
            sequence.request.produced = sequence.max_tokens - sequence.prompt_tokens
        return done

    def dissolve(self, in_flight: bool) -> list[Member]:
        """Everybody leaves, with the tokens that the steps have brought; in_flight: one more step computes its part."""
        members = list(self._members.values())
        for member in members:
            sequence = member.sequence
            sequence.tokens = member.context_then + 1 + self.step - member.joined
            sequence.computed = sequence.tokens - 1 + in_flight
            sequence.request.produced = sequence.tokens - sequence.prompt_tokens
            self._leave(member)
        self._ends.clear()
        self._longest.clear()
        return members

    def _leave(self, member: Member) -> None:
        sequence = member.sequence
        del self._members[sequence]
        member.there = False
        self.size -= 1
        context = member.context_then + self.step - member.joined
        self.context_sum -= context
        self._pages[(self.step - context) % self._page] -= 1
        if len(self._longest) > 2 * self.size + 64:
            self._longest = [entry for entry in self._longest if entry[2].there]
            heapify(self._longest)
        if not self.size:
            self._longest.clear()

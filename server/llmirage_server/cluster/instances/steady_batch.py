"""A batch of decoding sequences, known by sums: what a step of all of them needs, and who is done after which step.

Steps are numbered. All sequences of the batch gain a token with every step, so that a step costs the same to follow however
many there are. A sequence joins with the tokens that it has, and its own fields stand still until it leaves.

The context of a sequence at a step is the step's number less a number that never changes: its base. So what depends on
contexts is kept by base, and does not move when steps go by.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter

from llmirage_server.cluster.kv.cache import Sequence

# A sequence in the batch: number of the step that brings its last token; the order in which the instance runs its sequences;
# its base; number of the step that brought its first token here; the sequence. Of two that are done with the same step the
# one that joined first is the smaller. (A plain tuple: it is made once a request.)
Member = tuple[int, int, int, int, Sequence]


class SteadyBatch:
    """step: number of the next step. size, context_sum: of its sequences; a context is all tokens but for the last.

    next_last: number of the first step after which someone is done; a very large one if nobody is there.
    """

    def __init__(self, page_size: int) -> None:
        self.step = 0
        self.size = 0
        self.context_sum = 0
        self.next_last = sys.maxsize
        self._page = page_size
        self._members: list[Member] = []  # a heap: who is done first is first
        self._bases: dict[int, int] = {}  # how many sequences have which base
        self._lowest = sys.maxsize  # base: that of the longest context
        self._pages = [0] * page_size  # sequences that need a page, by the step's number modulo the page size
        self._serial = count()

    @property
    def longest(self) -> int:
        """The longest context of the next step; 0 if nobody is there."""
        return self.step - self._lowest if self.size else 0

    def to_come(self, most: int = sys.maxsize) -> int:
        """Tokens that its sequences are still expected to gain (`Sequence.expected`), counting at most `most` of each."""
        known = self.step + 1
        return sum([min(sequence.expected - known + base, most) for _, _, base, _, sequence in self._members])

    def pages_held(self) -> int:
        """Pages of all contexts of the next step, without what that step adds."""
        page, step = self._page, self.step
        unused = sum([(at - step) % page * sequences for at, sequences in enumerate(self._pages) if sequences])
        return (self.context_sum + unused) // page

    @property
    def shortest(self) -> int:
        """The shortest context of the next step; 0 if nobody is there."""
        return self.step - max(self._bases) if self.size else 0

    def bases(self) -> Iterable[tuple[int, int]]:
        """Every base, and how many sequences have it."""
        return self._bases.items()

    def join(self, sequence: Sequence, first: int) -> None:
        """From the next step on, after all that joined before. first: the step that brought the token it has now."""
        step, tokens = self.step, sequence.tokens
        base = step - tokens + 1
        last = step + sequence.max_tokens - tokens - 1
        if last < self.next_last:
            self.next_last = last
        heappush(self._members, (last, next(self._serial), base, first, sequence))
        bases = self._bases
        if base in bases:
            bases[base] += 1
        else:
            bases[base] = 1
            if base < self._lowest:
                self._lowest = base
        self.size += 1
        self.context_sum += tokens - 1
        self._pages[base % self._page] += 1

    def pages(self, steps: int = 1) -> int:
        """New pages that the next so many steps need."""
        page, pages = self._page, self._pages
        at = self.step % page
        if steps >= page:
            whole, steps = divmod(steps, page)
            return whole * self.size + (self.pages(steps) if steps else 0)
        beyond = at + steps - page
        if beyond > 0:
            return sum(pages[at:]) + sum(pages[:beyond])
        return pages[at] if steps == 1 else sum(pages[at : at + steps])

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

    def take_done(self) -> list[tuple[Sequence, int, int]]:
        """Who is done after the step that is just over, in their order, with the steps that brought first and last token.

        The sequences have all their tokens now.
        """
        done = []
        members, step = self._members, self.step
        while members and members[0][0] < step:
            last, _, base, first, sequence = heappop(members)
            self._leave(base)
            sequence.tokens = sequence.max_tokens
            sequence.computed = sequence.max_tokens - 1
            sequence.request.produced = sequence.max_tokens - sequence.prompt_tokens
            done.append((sequence, first, last))
        self.next_last = members[0][0] if members else sys.maxsize
        return done

    def members(self) -> list[Member]:
        """In the order in which the instance runs them."""
        return sorted(self._members, key=itemgetter(1))

    def find(self, sequence: Sequence) -> Member | None:
        return next((member for member in self._members if member[4] is sequence), None)

    def drop(self, member: Member, in_flight: bool = False) -> tuple[Sequence, int]:
        """One leaves before its end, with the tokens that the steps have brought; with it comes the step of the first.

        in_flight: one more step computes its part.
        """
        _, _, base, first, sequence = member
        self._members.remove(member)
        heapify(self._members)
        self.next_last = self._members[0][0] if self._members else sys.maxsize
        self._leave(base)
        sequence.computed = self.step - base + in_flight
        sequence.tokens = self.step - base + 1
        sequence.request.produced = sequence.tokens - sequence.prompt_tokens
        return sequence, first

    def dissolve(self) -> list[tuple[Sequence, int]]:
        """Everybody leaves, with the tokens that the steps have brought.

        Returns them in their order, each with the step that brought its first token here.
        """
        left = []
        step = self.step
        for _, _, base, first, sequence in self.members():
            context = step - base
            sequence.computed = context
            sequence.tokens = context + 1
            sequence.request.produced = context + 1 - sequence.prompt_tokens
            left.append((sequence, first))
        self.size = self.context_sum = 0
        self.next_last = self._lowest = sys.maxsize
        self._members.clear()
        self._bases.clear()
        self._pages = [0] * self._page
        return left

    def _leave(self, base: int) -> None:
        """Somebody with this base is not counted any more."""
        bases = self._bases
        self.size -= 1
        self.context_sum -= self.step - base
        self._pages[base % self._page] -= 1
        if bases[base] > 1:
            bases[base] -= 1
            return
        del bases[base]
        if base == self._lowest:
            self._lowest = min(bases, default=sys.maxsize)


class ReservingBatch(SteadyBatch):
    """For schedulers that often ask what is to come: it is kept as a sum, which is enough as long as nobody has `most`."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._expected_sum = 0
        self._most_to_come = 0  # of one sequence, ever

    def join(self, sequence: Sequence, first: int) -> None:
        super().join(sequence, first)
        self._expected_sum += sequence.expected
        self._most_to_come = max(self._most_to_come, sequence.expected - sequence.tokens)

    def take_done(self) -> list[tuple[Sequence, int, int]]:
        done = super().take_done()
        self._expected_sum -= sum([sequence.expected for sequence, _, _ in done])
        return done

    def drop(self, member: Member, in_flight: bool = False) -> tuple[Sequence, int]:
        self._expected_sum -= member[4].expected
        return super().drop(member, in_flight)

    def dissolve(self) -> list[tuple[Sequence, int]]:
        self._expected_sum = 0
        return super().dissolve()

    def to_come(self, most: int = sys.maxsize) -> int:
        if self._most_to_come > most:
            return super().to_come(most)
        return self._expected_sum - self.context_sum - self.size

"""A budget of work for the planning of a reply.

A schema, a regular expression or a grammar of a few bytes can ask for more work than any server has time for. Everything
in this folder that such a definition can repeat counts its steps with `spend`; a step takes some microseconds. Planning is
a pure function of the request, so work that exceeds a small budget may be done again with a larger one elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol, TypeVar

BRIEF = 1_000  # steps on the event loop: some milliseconds
FULL = 100_000  # steps for one request: some half a second
CHARACTERS = 8  # produced by one step
BRIEF_TOKENS = 8_192  # of prose on the event loop: a few milliseconds

T = TypeVar("T")


class InThread(Protocol):
    """Does work in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class BudgetError(Exception):
    """The work is more than its budget allows. part: the field of the request that was worked on, "" if nothing said so."""

    def __init__(self, part: str = "") -> None:
        super().__init__("more work than the planning of a reply may be")
        self.part = part


class Budget:
    """The steps that are left, and the part of the request that they are spent on. tokens: of prose; None is any number."""

    __slots__ = ("left", "part", "tokens")

    def __init__(self, steps: int, part: str = "", tokens: int | None = None) -> None:
        self.left = steps
        self.part = part
        self.tokens = tokens


# Set by `limited`, and by HttpExchange.planned.
CURRENT: ContextVar[Budget | None] = ContextVar("planning budget", default=None)


def spend(steps: int = 1) -> None:
    """Count steps before they are done. Raises BudgetError when that is more than is left; without a budget nothing is."""
    budget = CURRENT.get()
    if budget is not None:
        budget.left -= steps
        if budget.left < 0:
            raise BudgetError(budget.part)


def spend_characters(count: int) -> None:
    """Count the steps of characters that will be produced. Raises BudgetError as `spend`."""
    spend(count // CHARACTERS)


def spend_tokens(count: int) -> None:
    """Count the tokens of prose that will be written. Raises BudgetError when the event loop has no time for them."""
    budget = CURRENT.get()
    if budget is not None and budget.tokens is not None:
        budget.tokens -= count
        if budget.tokens < 0:
            raise BudgetError(budget.part)


def working_on(part: str) -> None:
    """Say which field of the request the next steps are spent on."""
    budget = CURRENT.get()
    if budget is not None:
        budget.part = part


def part_worked_on() -> str:
    """Return the field of the request that the last steps were spent on."""
    budget = CURRENT.get()
    return "" if budget is None else budget.part


def limited(work: Callable[[], T], budget: Budget) -> T:
    """Do the work within the budget. Raises BudgetError when it is too much, or nested too deeply for the interpreter."""
    token = CURRENT.set(budget)
    try:
        return work()
    except RecursionError:
        raise BudgetError(budget.part) from None
    finally:
        CURRENT.reset(token)

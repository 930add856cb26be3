"""The faults of a server. What they do to a request is in request_fault.py, imported when one of them may happen."""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from llmirage_server.drivers.live import Driver
from llmirage_server.http.access import RateLimits
from llmirage_server.http.exchange import FAULT_HEADER, HttpExchange
from llmirage_server.http.fault_hooks import FaultOfRequest
from llmirage_shared.settings import ConfigError, at_call
from llmirage_shared.wire.errors import ApiError

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule, Subject

logger = logging.getLogger("llmirage")

MOST_FAULTS = 1_000  # in force: the conditions of each are looked at with every request
_REMEMBERED_CUTS = 100

make_request_fault: Callable[..., FaultOfRequest] = at_call("llmirage_server.http.request_fault:RequestFault")
rule_of_header: Callable[[str, HttpExchange], FaultRule] = at_call("llmirage_server.http.request_fault:rule_of_header")


class InjectedFaults:
    """The faults of a server in order: the first that fits a request happens to it.

    allow_header: whether a request may inject a fault into its own reply.
    cuts: the text of each reply that a fault has cut, and the number of its request in the journal.
    """

    def __init__(self, driver: Driver, seed: int = 0, allow_header: bool = False) -> None:
        self.rules: tuple[FaultRule, ...] = ()
        self._seed = seed
        self._numbers = itertools.count(1)
        self.cuts: OrderedDict[str, int] = OrderedDict()
        self.driver = driver
        self.allow_header = allow_header
        self._warned = False
        self._limits: WeakKeyDictionary[FaultRule, RateLimits] = WeakKeyDictionary()

    async def arrived(self, exchange: HttpExchange) -> None:
        """Choose a fault before the body is read. Raises ApiError for one that refuses the request."""
        own = self._of_header(exchange)
        exchange.fault = make_request_fault(self, exchange, own)
        await exchange.fault.choose(None if own is None else (own,))

    def add(self, rules: Iterable[FaultRule]) -> None:
        """Put faults in force, behind those that are. Raises ConfigError for too many, and where none can meet one."""
        added = tuple(rules)
        if len(self.rules) + len(added) > MOST_FAULTS:
            raise ConfigError(
                [f"at most {MOST_FAULTS} faults can be in force; with these there would be {len(self.rules) + len(added)}"]
            )
        self._check(added)
        for rule in added:
            rule.begin(next(self._numbers), self._seed, self.driver.now_s)
        self.rules += added

    def remove(self, number: int) -> bool:
        """Take a fault out of force; False if there is none of this number."""
        left = tuple([rule for rule in self.rules if rule.number != number])
        removed = len(left) < len(self.rules)
        self.rules = left
        return removed

    def clear(self) -> None:
        self.rules = ()

    def first(self, subject: Subject, rules: Sequence[FaultRule] | None = None) -> FaultRule | tuple[FaultRule, ...] | None:
        """Return the fault that happens to a request, None for none.

        Several where the first of them depends on the request's body or its instance, which is not known yet.
        rules: those that are left to look at; None: all in force.
        """
        now_s = self.driver.now_s
        left = self.rules if rules is None else tuple(rules)
        for place, rule in enumerate(left):
            fits = rule.fits(subject, now_s)
            if fits is None:
                return left[place:]
            if fits and rule.drawn():
                return rule
        return None

    def prepare(self, rule: FaultRule) -> None:
        """Begin to count for a fault of a script or a header; the others are prepared when they are added.

        Raises ConfigError for one that no request can meet.
        """
        self._check((rule,))
        rule.begin(0, self._seed, self.driver.now_s)

    async def happen(self, rule: FaultRule, exchange: HttpExchange, streamed: bool) -> None:
        """Let a fault happen that a script has chosen, if its own conditions allow it. Raises ApiError as `arrived` does.

        streamed: whether the reply is a stream.
        """
        request = exchange.fault or make_request_fault(self, exchange)
        exchange.fault = request
        await request.scripted(rule, streamed)

    def limits_of(self, rule: FaultRule) -> RateLimits | None:
        """Return the token buckets of a fault that has some."""
        if rule.fault.limits is not None and rule not in self._limits:
            self._limits[rule] = RateLimits(*rule.fault.limits)
        return self._limits.get(rule)

    def was_cut(self, text: str, number: int) -> None:
        """Remember that a reply was cut after this text."""
        if text.strip():
            self.cuts[text.strip()] = number
            if len(self.cuts) > _REMEMBERED_CUTS:
                self.cuts.popitem(last=False)

    def _check(self, rules: Iterable[FaultRule]) -> None:
        last = len(self.driver.snapshot()) - 1
        problems = [
            f"{rule.source}: instance: must be at most {last}, the last of the cluster, not {rule.conditions.instance}"
            for rule in rules
            if (rule.conditions.instance or 0) > last
        ]
        if problems:
            raise ConfigError(problems)

    def _of_header(self, exchange: HttpExchange) -> FaultRule | None:
        """Return the fault in the request's header. Raises ApiError for one that does not exist."""
        given = exchange.header(FAULT_HEADER)
        if given is None:
            return None
        if not self.allow_header:
            if not self._warned:
                logger.warning("X-Llmirage-Fault was ignored: the server allows it with --set allow_fault_header=true")
                self._warned = True
            return None
        rule = rule_of_header(given, exchange)
        try:
            self.prepare(rule)
        except ConfigError as error:
            raise ApiError("; ".join(error.problems), code="invalid_fault") from None
        return rule

"""When the tokens of one stream were due, and when they left: for what the server tells of its own pace."""

from __future__ import annotations

import math

from llmirage_server.cluster.request import Request
from llmirage_server.drivers.live import Driver
from llmirage_shared.log_histogram import ServedTimes


class SentTimes:
    """Of the first and the last token of a stream; those before the first that shows do not count. Cluster time."""

    __slots__ = ("_driver", "_first_due_s", "_first_sent_s", "_gaps", "_last_sent_s")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._first_due_s = self._first_sent_s = self._last_sent_s = math.nan
        self._gaps = 0  # between tokens, from the first that shows on

    def first_shows(self, request: Request, place: int, written: bool) -> None:
        """The first token that shows came with the last step. place: in the reply; written: it has left, too."""
        if math.isnan(self._first_due_s):
            self._first_due_s = self._driver.cluster.reached_s if place else request.first_token_s
            self._gaps = request.output_tokens - 1 - place
            if written:
                self._first_sent_s = self._driver.now_s

    def written(self, last: bool) -> None:
        """All bytes so far have left. last: the end of the response is among them."""
        now_s = self._driver.now_s
        if math.isnan(self._first_sent_s) and not math.isnan(self._first_due_s):
            self._first_sent_s = now_s
        if last:
            self._last_sent_s = now_s

    def count(self, request: Request, served: ServedTimes) -> None:
        """Add them to those of the server, if the whole stream was sent and the cluster's time goes by a clock."""
        first_s, sent_s, last_s = self._first_due_s, self._first_sent_s, self._last_sent_s
        if not math.isnan(sent_s + last_s) and self._driver.speed < math.inf:
            arrival_s = request.arrival_s
            served.ended(first_s - arrival_s, sent_s - arrival_s, self._gaps, request.finished_s - first_s, last_s - sent_s)

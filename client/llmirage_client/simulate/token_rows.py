"""The requests of a simulation in token counts: a row each, for columns and, on demand, records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llmirage_client.load.conversation import BY_RUN, ON_PURPOSE, Conversation, Identifiers
from llmirage_client.measure.record import Exchange, Record, RequestError
from llmirage_client.simulator.engine import InFlightRequest, Request, RequestTooLongError, RouterError
from llmirage_shared.wire import errors

LOST = RequestError(None, "stream_error", "the instance that served the request was lost")
NO_INSTANCE = RequestError(503, "http_error", "no instance is there for the request, now or later")


def loss(dropped: str, unstreamed: bool) -> RequestError:
    """Return the error of a request that failed in the cluster. dropped: as of a cluster's request."""
    if not (dropped or unstreamed):
        return LOST
    error = errors.lost(dropped)
    return RequestError(error.status, "http_error", error.message)


class TokenRow(InFlightRequest):
    """One request of a run.

    issued_s: when it was due.
    start_s: when it was sent.
    end_s: when it ended; None: it has not.
    measured: whether it counts.
    own_task: on an event loop it would be a task of its own, which can be cancelled: it begins and ends one round of ready
        callbacks later than others.
    """

    __slots__ = ("conversation", "end_s", "error", "issued_s", "measured", "own_task", "start_s", "turn_index")

    def __init__(
        self, conversation: Conversation, turn_index: int, request: Request, issued_s: float, start_s: float
    ) -> None:
        self.request = request
        self.token_s = []
        self.conversation = conversation
        self.turn_index = turn_index
        self.issued_s = issued_s
        self.start_s = start_s
        self.end_s: float | None = None
        self.error: RequestError | None = None
        self.measured = False
        self.own_task = False

    def over(self) -> None:
        self.conversation.wake()

    def cancel(self) -> None:
        """End it when its conversation is resumed, see load.conversation.InFlight."""
        self.conversation.wake()

    @property
    def is_cancelled(self) -> bool:
        return self.error is BY_RUN or self.error is ON_PURPOSE


class TokenRows:
    """Rows in the order in which they ended.

    forgotten: number of earlier ones. on_many: called when there are `many` of them.
    """

    def __init__(self, identifiers: Identifiers, branching: bool = True, lengths_known: bool = True) -> None:
        """Create empty rows.

        branching: some may be of other conversations than roots.
        lengths_known: the workload gives the lengths of prompts; else only the server's usage does.
        """
        self._identifiers = identifiers
        self.branching = branching
        self.lengths_known = lengths_known
        self.rows: list[TokenRow] = []
        self.forgotten = 0
        self.many = sys.maxsize
        self.on_many: Callable[[], None] = lambda: None
        self._forgotten_names: list[str] = []
        self.counted: range | None = None  # which requests count, by the order in which they were planned; None: all
        self.on_row: Callable[[TokenRow], None] | None = None  # called as each request is over

    def add(self, row: TokenRow) -> None:
        self.rows.append(row)
        if self.on_row is not None and row.error is not BY_RUN:
            self.on_row(row)
        if len(self.rows) >= self.many:
            self.on_many()

    def forget(self) -> None:
        """Drop the rows; their names are kept."""
        self._forgotten_names = self.names()
        self.forgotten += len(self.rows)
        self.rows.clear()

    def names(self) -> list[str]:
        """Return the session's name of each row, forgotten ones included."""
        return self._forgotten_names + [row.conversation.session.id for row in self.rows]

    def made_records(self) -> list[Record]:
        assert not self.forgotten
        return [self.record(row) for row in self.rows]

    def request_id(self, row: TokenRow) -> str:
        return self._identifiers.make("request", row.conversation.correlation_id, row.turn_index)

    def record(self, row: TokenRow) -> Record:
        """Return the record that a run through the whole protocol would have made."""
        conversation, request, error = row.conversation, row.request, row.error
        stamps = row.arrivals.tolist()
        exchange = Exchange(
            start_s=row.start_s,
            end_s=row.end_s,
            token_s=stamps,
            first_output_s=stamps[0] if stamps else None,
            status=None if error is not None and error.code in _REFUSALS else 200,
            streamed=True,
            finish_reason="length" if error is None else None,
            usage=_usage(request) if error is None else None,
            error=error,
            instance=request.instance,
        )
        parent = conversation.parent
        return Record(
            session_num=conversation.number,
            conversation_id=conversation.session.id,
            turn_index=row.turn_index,
            request_id=self.request_id(row),
            correlation_id=conversation.correlation_id,
            root_correlation_id=conversation.root_correlation_id,
            parent_correlation_id=parent.correlation_id if parent else None,
            agent_depth=conversation.depth,
            issued_s=row.issued_s,
            exchange=exchange,
            phase="profiling" if row.measured else "warmup",
            cancelled=row.is_cancelled,
            input_tokens=request.prompt_tokens if self.lengths_known else None,
            output_tokens_asked=request.output_tokens,
            branch_mode=conversation.branch_mode,
            parent_turn_index=conversation.parent_turn_index,
            joined=conversation.joined(row.turn_index),
            tenant=conversation.tenant_of(row.turn_index),
        )


_REFUSALS = (400, 500)


def refusal(error: ValueError | RouterError, request: Request, holds: str) -> RequestError:
    """Return the error of a request that the cluster refused, in the words of its server. holds: the field of the prompt."""
    if isinstance(error, RequestTooLongError):
        said = errors.context_length_exceeded(error.room_tokens, request.prompt_tokens, request.output_tokens, holds)
        return RequestError(400, "http_error", said.message)
    return RequestError(500 if isinstance(error, RouterError) else 400, "http_error", str(error))


def _usage(request: Request) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.produced,
        "total_tokens": request.prompt_tokens + request.produced,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
    }

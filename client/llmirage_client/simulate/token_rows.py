"""The requests of a simulation in token counts: a row each, for columns and, when somebody asks for them, records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llmirage_client.load.identifiers import Identifiers
from llmirage_client.measure.record import CANCELLED, Exchange, Record, RequestError
from llmirage_client.simulate.token_streams import Talk
from llmirage_client.simulator.engine import Flight, Request, RouterError

LOST = RequestError(None, "stream_error", "the instance that served the request was lost")
NO_INSTANCE = RequestError(503, "http_error", "no instance is there for the request, now or later")
CANCELLED_BY_RUN = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class NamedTalk(Talk, Protocol):
    """What a row wants to know of its conversation; see load.conversation.Conversation."""

    @property
    def correlation_id(self) -> str: ...
    @property
    def root_correlation_id(self) -> str: ...
    @property
    def parent(self) -> NamedTalk | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def parent_turn_index(self) -> int | None: ...


class TokenRow(Flight):
    """One request of a run. issued_s: when it was due; start_s: when it went out; end_s: when it was over; None: it is not.

    joined: conversations that its turn waited for, by their correlation ids.
    """

    __slots__ = ("conversation", "end_s", "error", "issued_s", "joined", "measured", "start_s", "turn_index")

    def __init__(
        self, conversation: NamedTalk, turn_index: int, request: Request, issued_s: float, start_s: float, measured: bool
    ) -> None:
        self.request = request
        self.token_s = []
        self.conversation = conversation
        self.turn_index = turn_index
        self.issued_s = issued_s
        self.start_s = start_s
        self.end_s: float | None = None
        self.error: RequestError | None = None
        self.measured = measured
        self.joined: Sequence[str] = ()

    @property
    def is_cancelled(self) -> bool:
        return self.error is CANCELLED_BY_RUN


class TokenRows:
    """Rows in the order in which they were over."""

    def __init__(self, identifiers: Identifiers) -> None:
        self._identifiers = identifiers
        self.rows: list[TokenRow] = []
        self.counted: range | None = None  # which requests count, by the order in which they were planned; None: all
        self.on_row: Callable[[TokenRow], None] | None = None  # called as each request is over

    def made_records(self) -> list[Record]:
        """A record of every row."""
        return [self.record(row) for row in self.rows]

    def record(self, row: TokenRow) -> Record:
        """What a run through the whole protocol would have written down."""
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
        )
        parent = conversation.parent
        return Record(
            session_num=conversation.number,
            conversation_id=conversation.session.id,
            turn_index=row.turn_index,
            request_id=self._identifiers.make("request", conversation.correlation_id, row.turn_index),
            correlation_id=conversation.correlation_id,
            root_correlation_id=conversation.root_correlation_id,
            parent_correlation_id=parent.correlation_id if parent else None,
            agent_depth=conversation.depth,
            issued_s=row.issued_s,
            exchange=exchange,
            phase="profiling" if row.measured else "warmup",
            cancelled=row.is_cancelled,
            input_tokens=request.prompt_tokens,
            output_tokens_asked=request.output_tokens,
            branch_mode=conversation.branch_mode,
            parent_turn_index=conversation.parent_turn_index,
            joined=tuple(row.joined),
        )


_REFUSALS = (400, 500)


def refusal(error: ValueError | RouterError) -> RequestError:
    """Why a cluster did not take a request, as its server would say it."""
    return RequestError(500 if isinstance(error, RouterError) else 400, "http_error", str(error))


def _usage(request: Request) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.produced,
        "total_tokens": request.prompt_tokens + request.produced,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
    }

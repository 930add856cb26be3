"""The rules of sending requests that hold whichever way they go: over HTTP, or straight to a cluster in virtual time."""

from __future__ import annotations

from random import Random

from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import CANCELLED, RequestError

ON_PURPOSE = RequestError(499, CANCELLED, "cancelled on purpose (--request-cancellation-rate)")
BY_RUN = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class Sender:
    """The requests of a run's phases. Its ends are load.http_sender and simulate.cluster_sender.

    phase: name of the present one. cancels: some requests of this phase are cancelled on purpose.
    """

    def __init__(self, options: RunOptions, identifiers: Identifiers) -> None:
        self.phase = ""
        self.cancels = False
        self.cancellation_delay_s = options.cancellation_delay_s / options.speed
        self._cancellation_share = options.cancellation_share
        self._identifiers = identifiers
        self._overflow = () if options.lanes is None else options.lanes.overflow

    def begin(self, phase: str) -> None:
        """Send the requests of this phase from now on."""
        self.phase = phase
        self.cancels = phase == "profiling" and self._cancellation_share > 0

    def request_id(self, conversation: Conversation, turn_index: int) -> str:
        """Return the name of a request."""
        return self._identifiers.make("request", conversation.correlation_id, turn_index)

    def is_cancelled_on_purpose(self, request_id: str) -> bool:
        """Return whether a request is cancelled `cancellation_delay_s` after it was sent, unless its reply is complete.

        It depends on the request's id alone, and so on the seed and not on timing.
        """
        return self.cancels and Random(f"cancel {request_id}").random() < self._cancellation_share

    def is_overflow(self, error: RequestError | None) -> bool:
        """Return whether an error says that the prompt is too long for the model, where that has a rule of its own."""
        if error is None or not self._overflow or (error.code is not None and error.code < 300):
            return False
        message = error.message.lower()
        return any(text in message for text in self._overflow)

    def end(self, conversation: Conversation, error: RequestError | None, end_s: float) -> None:
        """Tell the conversation the outcome of its request; a cancelled one is no failure."""
        conversation.in_flight = None
        conversation.error = error
        conversation.overflowed = self.is_overflow(error)
        conversation.failed = error is not None and error.type != CANCELLED and not conversation.overflowed
        conversation.over_s = end_s

"""What a phase of a run needs of the interpreter of its conversations: the order of what is ready, and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llmirage_client.load.conversation import Conversation, Timer


class Interpreter(Protocol):
    """load.asyncio_interpreter on an event loop, simulate.event_queue in virtual time.

    Both run what is ready first come, first served, and send a conversation's request (REPLY) as soon as its rules say so.
    """

    def now(self) -> float:
        """Seconds on the run's clock."""
        ...

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls it after everything that is ready now."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Calls it at that time, after what is ready then."""
        ...

    def play(self, conversation: Conversation) -> object:
        """Lets the conversation go on (`Phase.resume`) after everything that is ready now."""
        ...

    def send(self, conversation: Conversation) -> bool:
        """Sends the request of the conversation's present turn; False if that is over at once."""
        ...

    def end(self, conversation: Conversation, cut: bool) -> bool:
        """The request in flight is over, or is to be (cut); False if it ends only when the conversation goes on again."""
        ...

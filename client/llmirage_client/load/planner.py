"""From a turn to its request, by the session's mode."""

from __future__ import annotations

from functools import cached_property

from llmirage_client.load.calls import Planned, message_call, verbatim_call
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.history import forget
from llmirage_client.load.options import RunOptions
from llmirage_client.load.synthetic_turns import SyntheticTurns
from llmirage_client.load.token_calls import TokenCalls
from llmirage_client.load.variation import Variation
from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints import endpoint_named
from llmirage_client.workload.session import Turn


class CallPlanner:
    """As the endpoint's API has it. Token turns need a tokenizer, which is loaded when the first of them comes."""

    def __init__(self, options: RunOptions, variation: Variation | None = None) -> None:
        """variation: of the tokens of repeats; None: there are no numbered ones."""
        self._options = options
        self._variation = variation
        self._endpoint = endpoint_named(options.endpoint_type or "chat", options.tokenizer)

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        session = conversation.session
        turn = session.turns[turn_index] if self._variation is None else self._variation.turn(session, turn_index)
        planned = self._planned(conversation, turn)
        planned.call.affinity_id = conversation.affinity_id
        planned.call.empty_ok = session.ends_on_failure  # evalscope's rules, which have both
        return planned

    def replied(self, conversation: Conversation, planned: Planned, exchange: Exchange) -> None:
        """Threads the live reply into the history."""
        thread, session = conversation.thread, conversation.session
        if thread is None:
            return
        if conversation.turn_index == len(session.turns) - 1:
            forget(thread.history)  # it goes out no more, but for forks; the bodies of the run are kept and would keep it
        thread.add_reply(exchange, session.mode)

    def _planned(self, conversation: Conversation, turn: Turn) -> Planned:
        match conversation.session.mode:
            case "verbatim":
                return Planned(verbatim_call(turn, self._options))
            case "tokens":
                return self._token_calls.plan(conversation, turn)
            case _:
                if turn.synthetic is not None:
                    turn = self._synthetic_turns.written(turn, turn.synthetic)
                call = message_call(conversation, turn, self._options, self._endpoint)
                return Planned(call, output_tokens=turn.min_tokens)

    @cached_property
    def _synthetic_turns(self) -> SyntheticTurns:
        return SyntheticTurns(self._options)

    @cached_property
    def _token_calls(self) -> TokenCalls:
        return TokenCalls(self._options)

"""What a user can choose, declared once: the command line, study files and Python callers read it here.

The settings of a run itself are load.options.RunOptions.
"""

from __future__ import annotations

from typing import Literal

CacheBust = Literal["none", "first_turn_prefix"]
ArrivalPattern = Literal["poisson", "constant", "gamma"]
ContextModeName = Literal[
    "deltas_without_responses",
    "deltas_with_responses",
    "message_array_with_responses",
    "server_state",
    "server_conversation",
]
EndpointKind = Literal["llmirage", "vllm", "other"]
EndpointName = Literal["chat", "completions", "responses", "messages", "raw"]
RateOf = Literal["turns", "conversations"]
SamplingStrategy = Literal["sequential", "shuffle", "random"]
SessionPrefix = Literal["extend", "none"]
ToolResults = Literal["authored", "matched", "fitted"]
UrlStrategy = Literal["round_robin", "sticky"]
Variable = Literal["concurrency", "request_rate"]

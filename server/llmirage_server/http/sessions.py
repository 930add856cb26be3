"""Headers by which clients and gateways name the session of a request, its tenant and its class."""

from __future__ import annotations

import math
from collections.abc import Callable
from urllib.parse import unquote

_OF_ROUTERS = (b"x-session-affinity", b"x-smg-routing-key")  # what may have it in common with other sessions
_OWN = (b"x-dynamo-session-id", b"x-session-id")

# Of each list the first that is there counts: the session of a request, the one that started it, what sticky routers go by.
SESSION_HEADERS = (*_OWN, b"x-correlation-id", *_OF_ROUTERS)
PARENT_HEADERS = (b"x-dynamo-parent-session-id", b"x-parent-session-id")
AFFINITY_HEADERS = (*_OF_ROUTERS, *_OWN)
# Of the Gateway API's inference extension, and as llm-d names them since 0.8.
CLASS_HEADERS = (b"x-gateway-inference-objective", b"x-llm-d-inference-objective")
TENANT_HEADERS = (b"x-gateway-inference-fairness-id", b"x-llm-d-inference-fairness-id")
# Objectives in milliseconds, as llm-d's router names them and as it did before.
SLO_HEADERS = {
    "TTFT": (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms"),
    "TPOT": (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms"),
}
SENDER_HEADERS = frozenset((*SESSION_HEADERS, *CLASS_HEADERS, *TENANT_HEADERS, *SLO_HEADERS["TTFT"], *SLO_HEADERS["TPOT"]))

_MOST_NAME = 256

Header = Callable[[bytes], bytes | None]
"""Returns the value of a header by its name in lower case."""


def first_header(header: Header, names: tuple[bytes, ...]) -> str | None:
    """Return the value of the first of these headers that is there, as far as a name may be long."""
    return next((value.decode("latin-1")[:_MOST_NAME] for name in names if (value := header(name))), None)


def objectives(header: Header) -> dict[str, float]:
    """Return the objectives in seconds that headers name, by TTFT and TPOT; inf for one that is no number above 0."""
    found = {}
    for name, headers in SLO_HEADERS.items():
        if (text := first_header(header, headers)) is not None:
            try:
                value = float(text)
            except ValueError:
                value = math.inf
            found[name] = value / 1e3 if value > 0 else math.inf
    return found


def labels(header: Header) -> dict[str, str]:
    """Return tenant and service_class, as workload files call them, where headers name them."""
    found = {"tenant": first_header(header, TENANT_HEADERS), "service_class": first_header(header, CLASS_HEADERS)}
    return {key: unquote(value) for key, value in found.items() if value}

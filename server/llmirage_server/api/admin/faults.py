"""GET, POST and DELETE /llmirage/faults: the faults in force, in order; more of them; fewer."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.service import ServiceHandler
from llmirage_server.faults.rule import Conditions, FaultRule, read_rules
from llmirage_server.telemetry.journal import REDACTED
from llmirage_shared.settings import ConfigError, settings_of
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.yaml_lines import node_of

_SOURCE = "POST /llmirage/faults"


class FaultsHandler(ServiceHandler):
    """Lists, adds and removes faults."""

    async def list(self, exchange: HttpExchange) -> Response:
        return self._shown(exchange, self._service.faults.rules)

    async def add(self, exchange: HttpExchange) -> Response:
        """Add the fault in the body, or the list under `faults`. Raises ApiError that tells of all problems."""
        body = await exchange.json_object()
        given = body.get("faults", [body])
        problems: list[str] = []
        try:
            node = node_of(given)
        except ConfigError as error:
            raise ApiError(f"faults: {error}", param="faults", code="invalid_fault") from None
        rules = read_rules(node, "faults", lambda _, place, problem: problems.append(f"{place}: {problem}"), _SOURCE)
        if "faults" in body and len(body) > 1:
            problems.append(f"unknown keys beside faults: {', '.join(sorted(body.keys() - {'faults'}))}")
        if problems:
            raise ApiError("; ".join(problems), param="faults", code="invalid_fault")
        self._service.faults.add(rules)
        return self._shown(exchange, rules)

    async def remove(self, exchange: HttpExchange) -> Response:
        """Remove one fault by its id. Raises ApiError (404)."""
        given = exchange.path_id()
        number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
        if not self._service.faults.remove(number):
            raise ApiError(f"There is no fault {given!r} in force.", status=404, param="id", code="fault_not_found")
        return self._shown(exchange, self._service.faults.rules)

    async def clear(self, exchange: HttpExchange) -> Response:
        """Remove all."""
        self._service.faults.clear()
        return self._shown(exchange, ())

    def _shown(self, exchange: HttpExchange, rules: Any) -> Response:
        return exchange.json({"faults": [_shown(rule) for rule in rules]})


def _shown(rule: FaultRule) -> dict[str, Any]:
    """A fault as JSON data: what was given for it, and how often it has happened."""
    conditions = {
        name: getattr(rule.conditions, name)
        for name, about in settings_of(Conditions).items()
        if getattr(rule.conditions, name) != about.default
    }
    if "key" in conditions:
        conditions["key"] = REDACTED
    return {
        "id": rule.number,
        "kind": rule.fault.kind,
        **rule.fault.parameters(),
        **conditions,
        "happened": rule.happened,
        "source": rule.source,
    }

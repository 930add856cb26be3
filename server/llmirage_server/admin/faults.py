"""Whatever goes wrong on purpose: the faults in force, more of them, fewer; instances that come, go and crash."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from starlette.responses import Response

from llmirage_server.faults.rule import FAULTS, Conditions, FaultRule, described, parameter_texts, read_rules
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.service.service import Service
from llmirage_shared.settings import ConfigError
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.yaml_lines import node_of, parse_mapping

_SOURCE = "POST /llmirage/faults"


class FaultsHandler:
    """Lists, adds and removes faults."""

    def __init__(self, faults: InjectedFaults) -> None:
        self._faults = faults

    async def list(self, exchange: HttpExchange) -> Response:
        """List the faults in force, all kinds of faults, and the conditions that go with each."""
        conditions = _texts(parameter_texts(Conditions))
        return self._shown(exchange, self._faults.rules, kinds=_kinds(), conditions=conditions)

    async def add(self, exchange: HttpExchange) -> Response:
        """Add the fault in the body, or the list under `faults`. Raises ApiError that tells of all problems."""
        body = await exchange.json_object()
        given = body.get("faults", [body])
        problems: list[str] = []
        try:
            node = await exchange.apart(lambda: node_of(given))
        except ConfigError as error:
            raise ApiError(f"faults: {error}", param="faults", code="invalid_fault") from None
        rules = await exchange.apart(
            lambda: read_rules(node, "faults", lambda _, place, problem: problems.append(f"{place}: {problem}"), _SOURCE)
        )
        if "faults" in body and len(body) > 1:
            problems.append(f"unknown keys beside faults: {', '.join(sorted(body.keys() - {'faults'}))}")
        if problems:
            raise ApiError("; ".join(problems), param="faults", code="invalid_fault")
        try:
            self._faults.add(rules)
        except ConfigError as error:
            raise ApiError("; ".join(error.problems), param="faults", code="invalid_fault") from None
        return self._shown(exchange, rules)

    async def remove(self, exchange: HttpExchange) -> Response:
        """Remove one fault by its id. Raises ApiError (404)."""
        given = exchange.path_id()
        number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
        if not self._faults.remove(number):
            raise ApiError(f"There is no fault {given!r} in force.", status=404, param="id", code="fault_not_found")
        return self._shown(exchange, self._faults.rules)

    async def clear(self, exchange: HttpExchange) -> Response:
        """Remove all."""
        self._faults.clear()
        return self._shown(exchange, ())

    def _shown(self, exchange: HttpExchange, rules: Iterable[FaultRule], **more: Any) -> Response:
        return exchange.json({"faults": [rule.shown() for rule in rules], **more})


class InstancesHandler:
    """GET and POST /llmirage/instances."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, exchange: HttpExchange) -> Response:
        """List the instances: the number of each, what it is (up, starting, draining, down), its requests, its port."""
        ports = {instance: port for port, (instance, rank) in exchange.scope["app"].ports.items() if rank < 1}
        listed = [
            {
                "instance": one.index,
                "pool": one.pool,
                "state": one.state,
                "running": one.running,
                "waiting": one.waiting,
                "port": ports.get(one.index),
            }
            for one in self._service.driver.snapshot()
        ]
        return exchange.json({"instances": listed})

    async def decisions(self, exchange: HttpExchange) -> Response:
        """List the last decisions of autoscaling, the newest last."""
        log = self._service.driver.cluster.scaling.log
        return exchange.json({"decisions": [decision._asdict() for decision in log]})

    async def act(self, exchange: HttpExchange) -> Response:
        """Let an instance start, stop (it finishes what it has) or crash. Raises ApiError for what cannot be."""
        asked = await exchange.checked(schema.engines.InstanceAction.check)
        try:
            self._service.driver.act(asked.action, asked.instance, asked.restart_after_s)
        except ValueError as error:
            raise errors.invalid_value("instance", f"{error}.") from None
        return await self.list(exchange)


@cache
def _kinds() -> list[dict[str, Any]]:
    """Return all kinds of faults with their parameters and an example, as JSON data."""
    examples = "".join([f"- {kind.example}\n" for kind in FAULTS.values()])
    [entry] = parse_mapping("faults:\n" + examples, "examples", "a file of faults")
    assert entry.node.items is not None
    return [
        {
            "name": fault.kind,
            "help": fault.summary,
            "streams_only": fault.streams_only,
            "parameters": _texts(fault.parameters),
            "example": example.value,
        }
        for fault, example in zip(map(described, FAULTS.values()), entry.node.items, strict=True)
    ]


def _texts(texts: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "help": text} for name, text in texts]

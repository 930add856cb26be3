"""OTLP/JSON, the form in which OpenTelemetry's data stands in files: what client and server write alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def nanoseconds(unix_s: float) -> str:
    """Return a Unix time in seconds as OTLP has it: nanoseconds, to the microsecond, as text."""
    return f"{round(unix_s * 1e6)}000"


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP has them."""
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def exported_spans(spans: Sequence[Mapping[str, Any]], service: str) -> dict[str, Any]:
    """Return an export of spans. service: the name of what made them."""
    scope = {"scope": {"name": "llmirage"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": _resource(service), "scopeSpans": [scope]}]}


def exported_metrics(metrics: Sequence[Mapping[str, Any]], service: str) -> dict[str, Any]:
    """Return an export of metrics. service: the name of what made them."""
    scope = {"scope": {"name": "llmirage"}, "metrics": list(metrics)}
    return {"resourceMetrics": [{"resource": _resource(service), "scopeMetrics": [scope]}]}


def _resource(service: str) -> dict[str, Any]:
    return {"attributes": attributes({"service.name": service})}


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}

"""Every operation of the API, read from operations.yaml: its body, its answer, its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from llmirage_shared.wire import schema
from llmirage_shared.wire.schema.base import WireModel

Style = Literal["json", "text", "list", "one_or_list", "bytes", "lines"]


@dataclass(frozen=True, kw_only=True)
class ApiOperation:
    """One method of one path. answer None: the body is empty or plain text."""

    method: str
    path: str
    id: str
    summary: str
    body: type[WireModel] | None = None  # in the file by its name in wire/schema
    body_required: bool = True
    form: bool = False  # the body is multipart/form-data
    answer: str | None = None  # the name of its schema in answers.yaml
    style: Style = "json"
    streams: bool = False
    query: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema by name
    errors: tuple[int, ...] = ()
    messages_api: bool = False  # errors have Anthropic's shape


def _operation(body: str | None = None, **entry: Any) -> ApiOperation:
    if body is not None:
        module, _, name = body.partition(".")
        entry["body"] = getattr(getattr(schema, module), name)
    return ApiOperation(**entry)


_FILE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("operations.yaml").read_text("utf-8"))
OPERATIONS: tuple[ApiOperation, ...] = tuple(_operation(**entry) for entry in _FILE["operations"])
EXAMPLES: Mapping[str, dict[str, Any]] = _FILE["examples"]  # a body for each path that takes a model, without the model

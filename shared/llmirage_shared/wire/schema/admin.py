"""The bodies of llmirage's own endpoints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from llmirage_shared.wire.schema.base import WireModel


class FaultsBody(WireModel):
    """POST /llmirage/faults: one fault with its parameters and conditions, or a list under `faults`. See docs/faults.md."""

    kind: Annotated[str, Field(description="The fault: a name from `llmirage faults`.")] | None = None
    faults: list[dict[str, Any] | str] | None = None

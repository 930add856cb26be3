"""The body of POST /v1/moderations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from llmirage_shared.wire.schema.base import WireModel
from llmirage_shared.wire.schema.chat import ImagePart, TextPart
from llmirage_shared.wire.schema.embeddings import MOST_INPUTS


def _item_tag(value: object) -> str:
    return "part" if isinstance(value, dict) else "text"


ModerationItem = Annotated[
    Annotated[str, Tag("text")] | Annotated[Annotated[TextPart | ImagePart, Field(discriminator="type")], Tag("part")],
    Discriminator(_item_tag),
]


class ModerationRequest(WireModel):
    """POST /v1/moderations: texts, each judged by itself, or the parts of one message."""

    input: str | Annotated[list[ModerationItem], Field(min_length=1, max_length=MOST_INPUTS)]
    model: str | None = None

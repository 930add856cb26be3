"""The form of POST /v1/files and the body of POST /v1/batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError

from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.schema.base import Integer, KeptName, Metadata, WireModel, pydantic_error


class ExpiresAfter(WireModel):
    """The expiry of a file: 1 hour to 30 days after it was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[Integer, Field(ge=3600, le=2_592_000)]


class FileUpload(WireModel):
    """POST /v1/files, as multipart/form-data; `expires_after` as `expires_after[anchor]` and `expires_after[seconds]`."""

    closed = ("expires_after",)

    file: str
    purpose: Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
    expires_after: ExpiresAfter | None = None


class BatchRequest(WireModel):
    """POST /v1/batches."""

    closed = ("output_expires_after",)

    input_file_id: KeptName
    endpoint: Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/moderations"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class MessageBatchItem(WireModel):
    """One request of a batch of messages."""

    model_config = ConfigDict(extra="forbid")

    custom_id: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchRequest(WireModel):
    """POST /v1/messages/batches."""

    model_config = ConfigDict(extra="forbid")
    wrong: ClassVar[Callable[[ValidationError, Any], ApiError]] = pydantic_error

    requests: Annotated[list[MessageBatchItem], Field(min_length=1, max_length=100_000)]

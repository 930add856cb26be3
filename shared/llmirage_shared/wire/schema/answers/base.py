"""Errors, lists, deletions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An object of a response."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ErrorObject(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """Every refusal of this server."""

    error: ErrorObject


class MessagesErrorObject(Answer):
    type: str
    message: str


class MessagesErrorAnswer(Answer):
    """A refusal in the words of the Messages API."""

    type: Literal["error"]
    error: MessagesErrorObject
    request_id: str | None = None


class Deleted(Answer):
    id: str
    object: str
    deleted: Literal[True]


class Page(Answer):
    """A list with cursors."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool

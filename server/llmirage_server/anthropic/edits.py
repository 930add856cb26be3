"""`context_management` of the Messages API: what is cleared from a conversation before the model sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from llmirage_server.anthropic.tools import fitting, unknown_tag
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError

BETA = "context-management-2025-06-27"
_COMPACT = "compact_20260112"
_CLEARED = "[cleared to save context]"
_Whole = Annotated[int, Field(ge=0)]
Request = TypeVar("Request", bound=schema.messages.CountRequest)
Count = Callable[[schema.messages.CountRequest], Awaitable[int]]
Block = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Tokens(_Strict):
    type: Literal["input_tokens"]
    value: _Whole


class _Uses(_Strict):
    type: Literal["tool_uses"]
    value: _Whole


class _Turns(_Strict):
    type: Literal["thinking_turns"]
    value: Annotated[int, Field(gt=0)]


class _All(_Strict):
    type: Literal["all"]


class _ClearToolUses(_Strict):
    """The defaults are those of the API."""

    type: str
    trigger: Annotated[_Tokens | _Uses, Field(discriminator="type")] = _Tokens(type="input_tokens", value=100_000)
    keep: _Uses = _Uses(type="tool_uses", value=3)
    clear_at_least: _Tokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class _ClearThinking(_Strict):
    type: str
    keep: Literal["all"] | Annotated[_Turns | _All, Field(discriminator="type")] = _Turns(type="thinking_turns", value=1)


_EDITS: Mapping[str, type[_ClearToolUses | _ClearThinking]] = {
    "clear_thinking_20251015": _ClearThinking, "clear_tool_uses_20250919": _ClearToolUses,
}  # fmt: skip


class ContextEdits:
    """The checked `context_management` of a request."""

    def __init__(self, request: schema.messages.CountRequest) -> None:
        """Read the edits. Raises ApiError in the API's words."""
        given = request.context_management or {}
        if unknown := sorted(given.keys() - {"edits"}):
            raise ApiError(f"context_management.{unknown[0]}: Extra inputs are not permitted")
        edits = given.get("edits") or []
        if not isinstance(edits, list):
            raise ApiError("context_management.edits: Input should be a valid list")
        self._edits = [_edit(f"context_management.edits.{index}", edit) for index, edit in enumerate(edits)]
        kinds = [edit.type for edit in self._edits]
        if len(set(kinds)) < len(kinds):
            raise ApiError("context_management.edits: Each strategy may be listed once only.")
        thinks = request.thinking is not None and request.thinking.type != "disabled"
        if "clear_thinking_20251015" in kinds:
            if not thinks:
                raise ApiError("`clear_thinking_20251015` strategy requires `thinking` to be enabled or adaptive")
            if kinds[0] != "clear_thinking_20251015":
                raise ApiError("context_management.edits: `clear_thinking_20251015` must be the first strategy")

    async def apply(self, request: Request, count: Count) -> tuple[Request, list[dict[str, Any]]]:
        """Return the request as the model sees it, and the edits that changed it. count: the tokens of a request."""
        applied: list[dict[str, Any]] = []
        for edit in self._edits:
            if isinstance(edit, _ClearThinking):
                changed, turns = _without_thoughts(request, edit)
                if turns:
                    saved = await count(request) - await count(changed)
                    applied.append({"type": edit.type, "cleared_thinking_turns": turns, "cleared_input_tokens": saved})
                    request = changed
                continue
            before = await count(request)
            changed, uses = _without_results(request, edit, before)
            saved = before - await count(changed) if uses else 0
            least = 1 if edit.clear_at_least is None else max(1, edit.clear_at_least.value)
            if saved >= least:
                applied.append({"type": edit.type, "cleared_tool_uses": uses, "cleared_input_tokens": saved})
                request = changed
        return request, applied


def _edit(where: str, edit: Any) -> _ClearToolUses | _ClearThinking:
    if not isinstance(edit, dict):
        raise ApiError(f"{where}: Input should be a valid dictionary")
    kind = str(edit.get("type"))
    if kind == _COMPACT:
        raise errors.unsupported(f"{where}.type", f"The strategy '{_COMPACT}' is not simulated by llmirage.")
    if kind not in _EDITS:
        raise unknown_tag(where, kind, _EDITS)
    checked: _ClearToolUses | _ClearThinking = fitting(_EDITS[kind], edit, f"{where}.{kind}")
    return checked


def _turns(request: schema.messages.CountRequest) -> Iterator[tuple[int, list[Block]]]:
    """Yield the messages that have blocks, with their places."""
    for place, message in enumerate(request.messages):
        if not isinstance(message.content, str):
            yield place, message.plain()["content"]


def _with_blocks(request: Request, changed: Mapping[int, Sequence[Block]]) -> Request:
    """Return the request with other blocks in the messages of these places."""
    messages = [
        message if place not in changed else type(message).model_validate({**message.plain(), "content": changed[place]})
        for place, message in enumerate(request.messages)
    ]
    return request.model_copy(update={"messages": messages})


def _without_thoughts(request: Request, edit: _ClearThinking) -> tuple[Request, int]:
    """Return the request without the thoughts of old turns, and of how many turns they were."""
    kinds = ("thinking", "redacted_thinking")
    thinking = [(place, blocks) for place, blocks in _turns(request) if any(block["type"] in kinds for block in blocks)]
    if not isinstance(edit.keep, _Turns):
        return request, 0
    old = thinking[: -edit.keep.value]
    without = {place: [block for block in blocks if block["type"] not in kinds] for place, blocks in old}
    return _with_blocks(request, without), len(old)


def _without_results(request: Request, edit: _ClearToolUses, tokens: int) -> tuple[Request, int]:
    """Return the request without the results of old tool uses, and of how many. tokens: of its prompt."""
    turns = dict(_turns(request))
    excluded = edit.exclude_tools or ()
    uses = {
        block["id"]: block["name"]
        for blocks in turns.values()
        for block in blocks
        if block["type"] == "tool_use" and block["name"] not in excluded
    }
    reached = tokens > edit.trigger.value if isinstance(edit.trigger, _Tokens) else len(uses) > edit.trigger.value
    old = list(uses)[: max(0, len(uses) - edit.keep.value)] if reached else []
    inputs = edit.clear_tool_inputs
    emptied = set(uses.values()) if inputs is True else set(inputs or ())
    changed: dict[int, list[Block]] = {}
    cleared = 0
    for place, blocks in turns.items():
        for index, block in enumerate(blocks):
            if block["type"] == "tool_result" and block["tool_use_id"] in old and block.get("content") != _CLEARED:
                changed.setdefault(place, list(blocks))[index] = {**block, "content": _CLEARED}
                cleared += 1
            elif block["type"] == "tool_use" and block["id"] in old and block["name"] in emptied:
                changed.setdefault(place, list(blocks))[index] = {**block, "input": {}}
    return _with_blocks(request, changed), cleared

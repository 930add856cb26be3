"""Rules of the Messages API beyond the form of its fields: refusals in its own words, signatures, `context_management`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from llmirage_server.anthropic.tools import RESULT_TYPES, StrictObject, check_tools, fitting, unknown_tag
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError

_KEY = b"llmirage thoughts"
_DIGEST_BYTES = 24
_MARK = "EqQB"  # how the API's signatures begin
_HELP = "Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
_LEAST_BUDGET = 1024
_MID_SYSTEM = "mid-conversation-system"  # how the beta is named that allows instructions among the messages

Blocks = Sequence[Mapping[str, Any]]


# --- signatures ---------------------------------------------------------------------------------------------------------


def signed(thought: str) -> str:
    """Return the signature of a thought: opaque to clients, the same on every server."""
    digest = _digest(thought.encode("utf-8", "replace"), b"")
    return _MARK + base64.b64encode(digest + _digest(digest, _KEY)).decode()


def is_signed(thought: str, signature: str) -> bool:
    """Tell whether a server signed this thought. One that was left out (`display: omitted`) is not compared."""
    try:
        given = base64.b64decode(signature.removeprefix(_MARK), validate=True)
    except ValueError:
        return False
    digest, seal = given[:_DIGEST_BYTES], given[_DIGEST_BYTES:]
    known = signature.startswith(_MARK) and seal == _digest(digest, _KEY)
    return known and (not thought or digest == _digest(thought.encode("utf-8", "replace"), b""))


def _digest(data: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=key).digest()


# --- refusals -----------------------------------------------------------------------------------------------------------


def refuse_messages(request: schema.messages.CountRequest, betas: frozenset[str]) -> None:
    """Raise ApiError for what engines take and the API refuses. betas: of the request's header."""
    check_tools(request, betas)
    if request.tool_choice is not None and request.tool_choice.type in ("any", "tool") and not request.tools:
        raise ApiError("tool_choice: `tool_choice` may only be specified while providing `tools`.")
    _check_container(request)
    if isinstance(request.system, list) and any(not block.text for block in request.system):
        raise ApiError("system: text content blocks must be non-empty")
    last = len(request.messages) - 1
    turns = [_blocks(message) for message in request.messages]
    roles = [message.role for message in request.messages]
    for index, blocks in enumerate(turns):
        _check_role(index, roles, betas)
        _check_content(index, roles[index], blocks, index == last)
    if roles[last] == "assistant" and turns[last]:
        final = turns[last][-1]
        if final["type"] == "text" and final["text"] != final["text"].rstrip():
            raise ApiError("messages: final assistant content cannot end with trailing whitespace")
    _check_thinking(request, roles, turns)


def _blocks(message: schema.messages.TurnMessage) -> Blocks:
    content = message.plain()["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content  # type: ignore[no-any-return]


def _check_role(index: int, roles: Sequence[str], betas: frozenset[str]) -> None:
    """Refuse a message of the system, except with the beta that allows it after a user's and at the end of a turn."""
    if roles[index] != "system":
        return
    ends = index + 1 == len(roles) or roles[index + 1] == "assistant"
    if not (any(beta.startswith(_MID_SYSTEM) for beta in betas) and index and roles[index - 1] == "user" and ends):
        raise ApiError(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as '
            "an input message role."
        )


def _check_content(index: int, role: str, blocks: Blocks, is_last: bool) -> None:
    if not blocks and not (is_last and role == "assistant"):
        raise ApiError(
            f"messages.{index}: all messages must have non-empty content except for the optional final assistant message"
        )
    for place, block in enumerate(blocks):
        kind = block["type"]
        if kind == "text" and not block["text"]:
            raise ApiError("messages: text content blocks must be non-empty")
        if kind == "text" and not block["text"].strip():
            raise ApiError("messages: text content blocks must contain non-whitespace text")
        where = f"messages.{index}.content.{place}"
        if role != "assistant" and kind in ("tool_use", "server_tool_use", "mcp_tool_use", "thinking", "redacted_thinking"):
            raise ApiError(f"messages.{index}: `{kind}` blocks can only be in `assistant` messages")
        if role != "user" and kind == "tool_result":
            raise ApiError(f"messages.{index}: `tool_result` blocks can only be in `user` messages")
        if kind == "thinking":
            if "signature" not in block:
                raise ApiError(f"{where}.thinking.signature: Field required")
            if not is_signed(block["thinking"], block["signature"] or ""):
                raise ApiError(f"{where}: Invalid `signature` in `thinking` block")
        if kind == "redacted_thinking" and not is_signed("", block["data"]):
            raise ApiError(f"{where}: Invalid `data` in `redacted_thinking` block")
    _check_server_results(index, blocks)


def _check_server_results(index: int, blocks: Blocks) -> None:
    """Raise ApiError unless each result of the API's own tools stands after its call, and each call but the last has one."""
    waiting: dict[str, tuple[int, str]] = {}  # place and name, by id
    for place, block in enumerate(blocks):
        kind = block["type"]
        if kind in ("server_tool_use", "mcp_tool_use"):
            waiting[block["id"]] = (place, block["name"])
        elif kind.endswith("_tool_result") and waiting.pop(block["tool_use_id"], None) is None:
            raise ApiError(
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `{kind}` blocks: "
                f"{block['tool_use_id']}. Each `{kind}` block must have a corresponding tool use block before it."
            )
    for use_id, (place, name) in waiting.items():
        raise ApiError(
            f"messages.{index}.content.{place}: `{name}` tool use with id `{use_id}` was found without a corresponding "
            f"`{RESULT_TYPES.get(name, 'mcp_tool_result')}` block"
        )


def _check_container(request: schema.messages.CountRequest) -> None:
    container = request.container
    if container is None or isinstance(container, str):
        return
    skills = container.get("skills")
    if unknown := sorted(container.keys() - {"id", "skills"}):
        raise ApiError(f"container.{unknown[0]}: Extra inputs are not permitted")
    if not isinstance(container.get("id"), str | None):
        raise ApiError("container.id: Input should be a valid string")
    if skills and not any((tool.type or "").startswith("code_execution_") for tool in request.tools or ()):
        raise ApiError("container.skills: Skills can only be used with a code execution tool in `tools`")


def _check_thinking(request: schema.messages.CountRequest, roles: Sequence[str], turns: Sequence[Blocks]) -> None:
    """Raise ApiError for what does not go with thoughts."""
    thinking = request.thinking
    if thinking is None or thinking.type == "disabled":
        return
    if thinking.type == "enabled":
        if thinking.budget_tokens is None:
            raise ApiError("thinking.enabled.budget_tokens: Field required")
        if thinking.budget_tokens < _LEAST_BUDGET:
            raise ApiError(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_LEAST_BUDGET}")
        most = getattr(request, "max_tokens", None)
        if most is not None and thinking.budget_tokens >= most:
            raise ApiError(
                f"`max_tokens` must be greater than `thinking.budget_tokens`. {_HELP}#max-tokens-and-context-window-size"
            )
    elif thinking.budget_tokens is not None:
        raise ApiError("thinking.adaptive.budget_tokens: Extra inputs are not permitted")
    if request.tool_choice is not None and request.tool_choice.type in ("any", "tool"):
        raise ApiError("Thinking may not be enabled when tool_choice forces tool use.")
    important = f"{_HELP}#important-considerations-when-using-extended-thinking"
    if isinstance(request, schema.messages.MessagesRequest):
        if request.temperature not in (None, 1):
            raise ApiError(f"`temperature` may only be set to 1 when thinking is enabled. {important}")
        if request.top_p is not None and request.top_p < 0.95:
            raise ApiError(f"`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled. {important}")
        if request.top_k is not None:
            raise ApiError(f"`top_k` must be unset when thinking is enabled. {important}")
    if thinking.type == "enabled":
        _check_last_turn(roles, turns)


def _check_last_turn(roles: Sequence[str], turns: Sequence[Blocks]) -> None:
    """Raise ApiError unless the assistant's turn that goes on (with results of tools, or a prefill) began with a thought."""
    first = len(turns)
    while first and (roles[first - 1] == "assistant" or any(block["type"] == "tool_result" for block in turns[first - 1])):
        first -= 1
    began = next((index for index in range(first, len(turns)) if roles[index] == "assistant" and turns[index]), None)
    if began is None or (kind := turns[began][0]["type"]) in ("thinking", "redacted_thinking"):
        return
    raise ApiError(
        f"messages.{began}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` "
        "is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
        "`tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this "
        f"requirement, disable `thinking`. {_HELP}"
    )


# --- context_management: what is cleared from a conversation before the model sees it -----------------------------------

BETA = "context-management-2025-06-27"
_COMPACT = "compact_20260112"
_CLEARED = "[cleared to save context]"
_Whole = Annotated[int, Field(ge=0)]
Request = TypeVar("Request", bound=schema.messages.CountRequest)
Count = Callable[[schema.messages.CountRequest], Awaitable[int]]
Block = dict[str, Any]


class _Tokens(StrictObject):
    type: Literal["input_tokens"]
    value: _Whole


class _Uses(StrictObject):
    type: Literal["tool_uses"]
    value: _Whole


class _Turns(StrictObject):
    type: Literal["thinking_turns"]
    value: Annotated[int, Field(gt=0)]


class _All(StrictObject):
    type: Literal["all"]


class _ClearToolUses(StrictObject):
    """The defaults are those of the API."""

    type: str
    trigger: Annotated[_Tokens | _Uses, Field(discriminator="type")] = _Tokens(type="input_tokens", value=100_000)
    keep: _Uses = _Uses(type="tool_uses", value=3)
    clear_at_least: _Tokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class _ClearThinking(StrictObject):
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

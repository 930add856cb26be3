"""Items of responses and conversations, as they are stored and listed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_shared.wire.errors import ApiError

Item = dict[str, Any]

_ID_PREFIX = {
    "message": "msg_", "reasoning": "rs_", "compaction": "cmp_",
    "function_call": "fc_", "function_call_output": "fco_", "custom_tool_call": "ctc_", "custom_tool_call_output": "ctco_",
    "web_search_call": "ws_", "file_search_call": "fs_", "code_interpreter_call": "ci_", "image_generation_call": "ig_",
    "mcp_list_tools": "mcpl_", "mcp_call": "mcp_", "mcp_approval_request": "mcpr_", "mcp_approval_response": "mcpa_",
    "computer_call": "cu_", "computer_call_output": "cuo_", "shell_call": "sh_", "shell_call_output": "sho_",
    "local_shell_call": "lsh_", "local_shell_call_output": "lsho_",
    "apply_patch_call": "ap_", "apply_patch_call_output": "apo_",
}  # fmt: skip
MOST_PARTS = 40_000  # of items, that one prompt is made of


def new_item_id(kind: str) -> str:
    """Return a new id of an item of this type."""
    return _ID_PREFIX.get(kind, "item_") + os.urandom(24).hex()


def listed_items(items: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Input items as they are listed: with type, id and status, content as parts."""
    return [_listed(item) for item in items]


def _listed(item: Mapping[str, Any]) -> Item:
    kind = item.get("type") or "message"
    kept: Item = {"id": item.get("id") or new_item_id(kind), "type": kind, **{k: v for k, v in item.items() if k != "id"}}
    if kind == "message":
        kept["type"] = "message"
        kept.setdefault("status", "completed")
        if isinstance(kept["content"], str):
            part: Item = {"type": "input_text", "text": kept["content"]}
            if kept["role"] == "assistant":
                part = {"type": "output_text", "text": kept["content"], "annotations": [], "logprobs": []}
            kept["content"] = [part]
    elif kind in ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"):
        kept.setdefault("status", "completed")
    elif kind == "reasoning":
        kept["summary"] = kept.get("summary") or []
    return kept


def size_of(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of items and of the parts of their contents."""
    return sum([1 + len(content) if isinstance(content := item.get("content"), list) else 1 for item in items])


def check_size(size: int, param: str, most: int) -> None:
    """Raise ApiError (400) for more items and parts of them than that. param: what adds to them."""
    if size > most:
        raise ApiError(f"The conversation has too many items: {size} with their parts, of {most}.", param=param)

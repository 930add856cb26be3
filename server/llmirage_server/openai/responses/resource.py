"""The response object with every setting and its default."""

from __future__ import annotations

from typing import Any

from llmirage_server.service.constraints import plain
from llmirage_server.state.items import Item
from llmirage_shared.wire import schema


def new_response(
    response_id: str, created_at: int, request: schema.responses.ResponseRequest, model: str, conversation: str | None
) -> Item:
    """Return the object of a response that has not begun. It has the keys of OpenAI's and of the Open Responses document."""
    reasoning, text, instructions = request.reasoning, request.text, request.instructions
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "queued" if request.background else "in_progress",
        "background": bool(request.background),
        "billing": {"payer": "developer"},
        "error": None,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": [item.plain() for item in instructions] if isinstance(instructions, list) else instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        **({} if request.prompt is None else {"prompt": request.prompt.plain()}),
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default" if request.service_tier in (None, "auto") else request.service_tier,
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": _format(text), "verbosity": (text.verbosity if text else None) or "medium"},
        "tool_choice": plain(request.tool_choice) or "auto",
        "tools": [_tool(tool) for tool in request.plain_tools],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user or "",  # null is valid for Open Responses only, a string for OpenAI's document, too
        "metadata": request.metadata or {},
        **({} if conversation is None else {"conversation": {"id": conversation}}),
    }


def _format(text: schema.responses.TextOptions | None) -> dict[str, Any]:
    if text is None or text.format is None:
        return {"type": "text"}
    form = text.format.plain()
    if form["type"] == "json_schema":
        form = {"strict": False, **{key: value for key, value in form.items() if value is not None}}
    return form


def _tool(tool: Item) -> Item:
    """Return a tool as the response repeats it: function tools with all of their fields."""
    if tool.get("type") == "function":
        return {"description": None, "parameters": {}, **tool, "strict": tool.get("strict") is not False}
    if tool.get("type") == "custom":
        return {"format": {"type": "text"}, **tool}
    return tool


def response_usage(usage: Item) -> Item:
    """Chat's usage object in the form of the Responses API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }

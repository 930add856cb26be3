"""The API's own tools: hosted ones, whose results are simulated, and those that the client runs.

Every simulated result is marked as one: in its URL (https://example.com/simulated/...), its file name, its attributes or its
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_server.replies.reply import Part, Tool
from llmirage_server.service.simulated_tools import code_output, mcp_output, search_urls
from llmirage_server.state.conversation import Item, new_item_id
from llmirage_server.state.files import SIMULATED
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import new_call_id

Event = tuple[str, Item]  # the end of its type, and its fields

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _arguments(*names: str) -> dict[str, Any]:
    """Return the JSON Schema of arguments that are strings."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


# By type: the tool as the model sees it. The server runs `hosted` tools, the client runs `client` tools.
OWN_TOOLS: dict[str, Tool] = {
    "web_search": Tool("hosted", "web_search", "Search the web.", _arguments("query")),
    "file_search": Tool("hosted", "file_search", "Search the uploaded documents.", _arguments("query")),
    "code_interpreter": Tool("hosted", "code_interpreter", "Run Python code, plot and analyze data.", {
        **_arguments("code"), "properties": {"code": {"type": "string", "contentMediaType": "text/x-python"}},
    }),
    "image_generation": Tool("hosted", "image_generation", "Generate an image, a picture or a photo.", _arguments("prompt")),
    "computer": Tool("client", "computer", "Use a computer: open websites, click, type, take screenshots.", _arguments()),
    "shell": Tool("client", "shell", "Run a shell command.", _arguments("command")),
    "local_shell": Tool("client", "local_shell", "Run a shell command.", _arguments("command")),
    "apply_patch": Tool("client", "apply_patch", "Change a file.", _arguments("operation")),
}  # fmt: skip
_TYPE_BY_NAME = {tool.name: kind for kind, tool in OWN_TOOLS.items()}
STAGES = {  # events between in_progress and completed, by type of the item
    "web_search_call": ("searching",),
    "file_search_call": ("searching",),
    "code_interpreter_call": ("interpreting",),
    "image_generation_call": ("generating",),
}


def kind_of(declared: str) -> str:
    """web_search_preview_2025_03_11 -> web_search, computer_use_preview -> computer."""
    for kind in ("web_search", "computer"):
        if declared.startswith(kind):
            return kind
    return declared


def hosted_tools(declared: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Return the callable tools of one of the API's own tools. items: the conversation with the user's approvals."""
    kind = kind_of(str(declared["type"]))
    if kind != "mcp":
        return [OWN_TOOLS[kind]] if kind in OWN_TOOLS else []
    label, about = str(declared.get("server_label", "")), str(declared.get("server_description") or "")
    tools = []
    for name in _names(declared):
        approved = _approval(items, label, name)
        if approved is False:
            continue
        runs = approved or not _needs_approval(declared, name)
        tools.append(Tool("hosted" if runs else "client", f"{label}.{name}", about or f"Use {label}.", _arguments("query")))
    return tools


def chosen(choice: Mapping[str, Any], tools: Sequence[Tool]) -> tuple[str, ...] | None:
    """Return the names of the tools that a `tool_choice` of a hosted type forces, None for any other choice."""
    kind = kind_of(str(choice.get("type", "")))
    if kind == "mcp":
        label, name = choice.get("server_label", ""), choice.get("name")
        return tuple(
            tool.name for tool in tools if tool.name == f"{label}.{name}" or (not name and tool.name.startswith(f"{label}."))
        )
    return (OWN_TOOLS[kind].name,) if kind in OWN_TOOLS else None


def _names(declared: Mapping[str, Any]) -> list[str]:
    """Return the tools of an MCP server, which is never called: the allowed ones, else one named search."""
    allowed = declared.get("allowed_tools") or ()
    names = allowed.get("tool_names") or () if isinstance(allowed, dict) else allowed
    return [str(name) for name in names] or ["search"]


def _needs_approval(declared: Mapping[str, Any], name: str) -> bool:
    wanted = declared.get("require_approval", "always")
    if isinstance(wanted, dict):
        never = (wanted.get("never") or {}).get("tool_names") or ()
        always = (wanted.get("always") or {}).get("tool_names")
        return name not in never and (always is None or name in always)
    return bool(wanted != "never")


def _approval(items: Sequence[Mapping[str, Any]], label: str, name: str) -> bool | None:
    """Return the user's answer to the last request to call this tool, None without one."""
    requests = {item.get("id") for item in items if _asks_for(item, f"{label}.{name}")}
    given = [
        item for item in items if item.get("type") == "mcp_approval_response" and item.get("approval_request_id") in requests
    ]
    return bool(given[-1].get("approve")) if given else None


def _asks_for(item: Mapping[str, Any], name: str) -> bool:
    """Tell whether it is a request to approve a call of this MCP tool."""
    return item.get("type") == "mcp_approval_request" and f"{item.get('server_label')}.{item.get('name')}" == name


def listed(declared: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Return an `mcp_list_tools` item for each MCP server that the conversation does not list yet."""
    known = {item.get("server_label") for item in items if item.get("type") == "mcp_list_tools"}
    return [
        {
            "id": new_item_id("mcp_list_tools"),
            "type": "mcp_list_tools",
            "server_label": tool["server_label"],
            "tools": [
                {
                    "name": name,
                    "description": "A simulated tool.",
                    "input_schema": _arguments("query"),
                    "annotations": {"simulated": True},
                }
                for name in _names(tool)
            ],
            "error": None,
        }
        for tool in declared
        if tool.get("type") == "mcp" and tool.get("server_label") not in known
    ]


class OutputItem:
    """An item of the output. delta: the event of its text as it comes; "": the text is not streamed.

    inner: the fields of its events that say where in the item they belong. has_logprobs: its deltas have log probabilities.
    """

    delta = ""
    has_logprobs = False

    def __init__(self, part: Part, id: str) -> None:
        self.part = part
        self.id = id
        self.inner: Item = {}

    def opening(self) -> Item:
        """Return the item in `output_item.added`."""
        raise NotImplementedError

    def finished(self, logprobs: Sequence[Item]) -> Item:
        """Return the item in `output_item.done` and in the response. logprobs: of its tokens."""
        raise NotImplementedError

    def begun(self) -> Iterator[Event]:
        """Yield the events after it was added."""
        yield from ()

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        """Yield the events before it is done."""
        yield from ()


class ListedTools(OutputItem):
    """The output item that lists an MCP server's tools. No token generates it."""

    def __init__(self, item: Item) -> None:
        super().__init__(Part("hosted_call", 0, 0), item["id"])
        self._item = item

    def opening(self) -> Item:
        return {**self._item, "tools": []}

    def finished(self, logprobs: Sequence[Item]) -> Item:
        return self._item

    def begun(self) -> Iterator[Event]:
        yield "mcp_list_tools.in_progress", {}

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        yield "mcp_list_tools.completed", {}


class HostedCall(OutputItem):
    """The output item of a call of one of the API's own tools."""

    def __init__(
        self,
        part: Part,
        text: str,
        cut: bool,
        request: schema.responses.ResponseRequest,
        items: Sequence[Mapping[str, Any]],
    ) -> None:
        """cut: the reply ended inside this part."""
        self.text = text
        self.cut = cut
        self._include = request.include or ()
        self._partial_images = sum(tool.get("partial_images") or 0 for tool in request.plain_tools)
        self._kind = _TYPE_BY_NAME.get(part.name, "mcp")
        self._runs_here = part.kind == "hosted_call"
        self.kind = f"{self._kind}_call" if self._kind != "mcp" or self._runs_here else "mcp_approval_request"
        super().__init__(part, new_item_id(self.kind))
        self.delta = "mcp_call_arguments" if self.kind == "mcp_call" else ""  # the event of text that is streamed
        self._call_id = new_call_id()
        try:
            self._arguments: dict[str, Any] = json.loads(text)
        except ValueError:  # cut off
            self._arguments = {}
        self._approved_by = next((item.get("id") for item in items if _asks_for(item, part.name)), None)

    def opening(self) -> Item:
        return self._item("in_progress", begun=True)

    def finished(self, logprobs: Sequence[Item]) -> Item:
        return self._item(self._status())

    def begun(self) -> Iterator[Event]:
        if self._runs_here:
            yield f"{self.kind}.in_progress", {}

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        if not self._runs_here:
            return
        if self._kind == "code_interpreter":
            for line in self._said("code").splitlines(keepends=True):
                yield "code_interpreter_call_code.delta", {"delta": line}
            yield "code_interpreter_call_code.done", {"code": self._said("code")}
        if self._kind == "mcp":
            yield "mcp_call_arguments.done", {"arguments": self.text}
        if self.cut:
            return
        for stage in STAGES.get(self.kind, ()):
            yield f"{self.kind}.{stage}", {}
        if self._kind == "image_generation":
            for number in range(self._partial_images):
                partial = {"partial_image_index": number, "partial_image_b64": _PIXEL}
                yield f"{self.kind}.partial_image", partial
        yield f"{self.kind}.completed", {}

    def annotation(self, text: str) -> Item | None:
        """Return the citation of this call in the first sentence of the text after it."""
        end = max(1, text.find(".") + 1 or len(text))
        if self._kind == "web_search":
            where = {"start_index": 0, "end_index": end}
            return {"type": "url_citation", **where, "url": self._sources()[0]["url"], "title": "Simulated search result"}
        if self._kind == "file_search":
            found = self._results()[0]
            return {"type": "file_citation", "index": end, "file_id": found["file_id"], "filename": found["filename"]}
        return None

    def _status(self) -> str:
        if not self.cut:
            return "completed"
        return (
            "incomplete"
            if self._kind in ("file_search", "code_interpreter", "mcp", "shell", "local_shell", "computer")
            else "failed"
        )

    def _said(self, name: str) -> str:
        return str(self._arguments.get(name, ""))

    def _item(self, status: str, begun: bool = False) -> Item:
        item: Item = {"id": self.id, "type": self.kind, "status": status}
        fields = getattr(self, f"_{self._kind}")(begun)
        if self.kind == "mcp_approval_request":
            item.pop("status")
        if self.kind == "apply_patch_call" and status == "failed":
            item["status"] = "completed"  # the API has no other end
        return {**item, **fields}

    def _web_search(self, begun: bool) -> Item:
        query = "" if begun else self._said("query")
        action: Item = {"type": "search", "query": query, "queries": [query]}
        if "web_search_call.action.sources" in self._include and not begun:
            action["sources"] = self._sources()
        return {"action": action}

    def _sources(self) -> list[Item]:
        return [{"type": "url", "url": url} for url in search_urls(self._said("query"))]

    def _file_search(self, begun: bool) -> Item:
        shown = "file_search_call.results" in self._include and not begun
        return {"queries": [] if begun else [self._said("query")], "results": self._results() if shown else None}

    def _results(self) -> list[Item]:
        return [
            {
                "file_id": file_id,
                "filename": file.filename,
                "score": round(0.95 - 0.1 * number, 2),
                "text": f"Simulated passage {number} for: {self._said('query')}",
                "attributes": {"simulated": True},
            }
            for number, (file_id, file) in enumerate(SIMULATED.items(), 1)
        ]

    def _code_interpreter(self, begun: bool) -> Item:
        outputs: list[Item] | None = None
        if "code_interpreter_call.outputs" in self._include and not begun:
            outputs = [{"type": "logs", "logs": code_output(self._said("code"))}]
        return {"container_id": "cntr_simulated", "code": "" if begun else self._said("code"), "outputs": outputs}

    def _image_generation(self, begun: bool) -> Item:
        if begun or self.cut:
            return {"result": None}
        return {"result": _PIXEL, "revised_prompt": f"(simulated, one pixel) {self._said('prompt')}"}

    def _mcp(self, begun: bool) -> Item:
        label, _, name = self.part.name.partition(".")
        fields: Item = {"server_label": label, "name": name, "arguments": "" if begun else self.text}
        if self._runs_here:
            output = None if begun or self.cut else mcp_output(name, self._said("query"))
            fields |= {"output": output, "error": None, "approval_request_id": self._approved_by}
        return fields

    def _computer(self, begun: bool) -> Item:
        return {"call_id": self._call_id, "action": {"type": "screenshot"}, "pending_safety_checks": []}

    def _shell(self, begun: bool) -> Item:
        action = {"commands": [] if begun else [self._said("command")], "timeout_ms": None, "max_output_length": None}
        return {"call_id": self._call_id, "action": action, "environment": {"type": "local"}}

    def _local_shell(self, begun: bool) -> Item:
        command = [] if begun else ["bash", "-lc", self._said("command")]
        action: Item = {
            "type": "exec",
            "command": command,
            "env": {},
            "timeout_ms": None,
            "user": None,
            "working_directory": None,
        }
        return {"call_id": self._call_id, "action": action}

    def _apply_patch(self, begun: bool) -> Item:
        operation = self._arguments.get("operation") or {"type": "update_file", "path": "", "diff": ""}  # cut off
        if begun and "diff" in operation:
            operation = {**operation, "diff": ""}
        return {"call_id": self._call_id, "operation": operation}

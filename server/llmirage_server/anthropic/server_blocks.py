"""Content blocks of tools that the API runs: the call, and what it gave, which is simulated and says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from llmirage_server.anthropic.tools import RESULT_TYPES, declared_tools, valid_type
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.service.simulated_tools import (
    SIMULATED_HOSTS,
    code_output,
    mcp_output,
    sealed,
    search_urls,
    writes_file,
)
from llmirage_server.state.files import SIMULATED_OUTPUT
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import new_id

Block = dict[str, Any]
_MOST_QUOTED = 150  # characters of a source that a citation repeats
_LONGEST_URL = 250
_CONTAINER_DAYS = 30
_CODE_TOOLS = ("code_execution", "bash_code_execution", "text_editor_code_execution")


@dataclass(slots=True)
class ServerTools:
    """The API's own tools in a request: what they may do, and what they have done in its reply.

    options: of the declared tools, by name. shown: texts in which addresses may stand that can be fetched. deferred: names
    and descriptions of tools that a search finds. uses: calls so far, by name.
    """

    options: Mapping[str, Mapping[str, Any]]
    shown: Sequence[str] = ()
    deferred: Mapping[str, str] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: schema.messages.CountRequest, chat: Sequence[Mapping[str, Any]]) -> ServerTools:
        """chat: the messages in chat's form."""
        tools = request.tools or ()
        deferred = {tool.name: tool.description for tool in declared_tools(request) if tool.found_by}
        shown = [
            json.dumps(message.get("content"), ensure_ascii=False) for message in chat if message.get("role") != "system"
        ]
        return cls({tool.name or "": tool.plain() for tool in tools if valid_type(tool)}, shown, deferred)

    def call(self, part: Part, text: str, cut: bool) -> ServerCall:
        """Make the blocks of the next call of the reply. cut: the reply ended inside it."""
        used = self.uses[part.name] = self.uses.get(part.name, 0) + 1
        most = self.options.get(part.name, {}).get("max_uses")
        try:
            given = json.loads(text)
        except ValueError:  # cut off
            given = {}
        call = ServerCall(part, given, cut)
        if not cut:
            call.content = self._content(call, most is not None and used > most)
            if call.urls:
                self.shown = [*self.shown, *call.urls]
        return call

    @property
    def usage(self) -> dict[str, Any]:
        """Return what the usage adds for them: requests to the web, if there were any."""
        counts = {f"{name}_requests": self.uses.get(name, 0) for name in ("web_fetch", "web_search")}
        return {"server_tool_use": counts} if any(counts.values()) else {}

    def _content(self, call: ServerCall, exhausted: bool) -> Any:
        name, given = call.part.name, call.given
        said = {key: str(given.get(key) or "") for key in ("query", "url", "code", "command")}
        if exhausted:
            return {"type": f"{name}_tool_result_error", "error_code": "max_uses_exceeded"}
        if name == "web_search":
            call.urls = search_urls(said["query"], self._hosts(name))
            return [
                {
                    "type": "web_search_result",
                    "url": url,
                    "title": f"Simulated search result {number}",
                    "encrypted_content": sealed(_passage(number, said["query"])),
                    "page_age": None,
                }
                for number, url in enumerate(call.urls, 1)
            ]
        if name == "web_fetch":
            return self._fetched(said["url"])
        if name == "code_execution":
            return _ran("code_execution", said["code"])
        if name == "bash_code_execution":
            return _ran("bash_code_execution", said["command"])
        if name == "text_editor_code_execution":
            return _edited(given)
        if name.startswith("tool_search_tool_"):
            found = [tool for tool in said["query"].split("|") if tool in self.deferred] or self._matching(said["query"])
            references = [{"type": "tool_reference", "tool_name": tool} for tool in found]
            return {"type": "tool_search_tool_search_result", "tool_references": references}
        written = said["query"] or json.dumps(given, ensure_ascii=False)
        return [{"type": "text", "text": mcp_output(name.partition(".")[2], written)}]

    def _matching(self, query: str) -> list[str]:
        words = query.lower().split()
        told = {name: f"{name} {about}".lower() for name, about in self.deferred.items()}
        return [name for name, text in told.items() if any(word in text for word in words)][:5]

    def _hosts(self, name: str) -> list[str]:
        """Return the hosts that the declaration allows: those it lists, else simulated ones that it does not block."""
        options = self.options.get(name, {})
        if allowed := options.get("allowed_domains"):
            return [str(domain).partition("/")[0].removeprefix("*.") for domain in allowed]
        blocked = [str(domain) for domain in options.get("blocked_domains") or ()]
        return [host for host in SIMULATED_HOSTS if not any(_is_below(host, domain) for domain in blocked)][:1]

    def _fetched(self, url: str) -> Block:
        options = self.options.get("web_fetch", {})
        host = url.partition("://")[2].partition("/")[0].partition(":")[0]
        allowed, blocked = options.get("allowed_domains"), options.get("blocked_domains") or ()
        problem = ""
        if len(url) > _LONGEST_URL:
            problem = "url_too_long"
        elif not any(url.partition("://")[2].rstrip("/") in text for text in self.shown):
            problem = "url_not_in_prior_context"
        elif any(_is_below(host, str(domain)) for domain in blocked) or (
            allowed and not any(_is_below(host, str(domain)) for domain in allowed)
        ):
            problem = "url_not_allowed"
        if problem:
            return {"type": "web_fetch_tool_result_error", "error_code": problem}
        citations = options.get("citations")
        return {
            "type": "web_fetch_result",
            "url": url,
            "retrieved_at": _time(datetime.now(UTC)),
            "content": {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": f"(simulated) The page at {url}.\n"},
                "title": "Simulated page",
                **({"citations": citations} if citations else {}),
            },
        }


def _is_below(host: str, domain: str) -> bool:
    domain = domain.partition("/")[0].removeprefix("*.")
    return host == domain or host.endswith(f".{domain}")


def _passage(number: int, query: str) -> str:
    return f"Simulated passage {number} for: {query}"


def _ran(kind: str, code: str) -> Block:
    files = [{"type": f"{kind}_output", "file_id": SIMULATED_OUTPUT}] if writes_file(code) else []
    return {"type": f"{kind}_result", "stdout": code_output(code), "stderr": "", "return_code": 0, "content": files}


def _edited(given: Mapping[str, Any]) -> Block:
    kind = "text_editor_code_execution"
    command = given.get("command")
    if command == "create":
        return {"type": f"{kind}_create_result", "is_file_update": False}
    if command in ("str_replace", "insert"):
        old, new = (str(given.get(name) or "").split("\n") for name in ("old_str", "new_str"))
        lines = [*[f"-{line}" for line in old], *[f"+{line}" for line in new]]
        places = {"old_start": 1, "old_lines": len(old), "new_start": 1, "new_lines": len(new)}
        return {"type": f"{kind}_str_replace_result", **places, "lines": lines}
    content = f"(simulated) The content of {given.get('path')}.\n"
    return {
        "type": f"{kind}_view_result", "file_type": "text", "content": content, "num_lines": 1, "start_line": 1,
        "total_lines": 1,
    }  # fmt: skip


@dataclass(slots=True)
class ServerCall:
    """A call of one of the API's own tools, as the block that makes it and the block with what it gave."""

    part: Part
    given: Mapping[str, Any]
    cut: bool
    content: Any = None
    urls: Sequence[str] = ()
    id: str = ""

    def __post_init__(self) -> None:
        self.id = new_id("srvtoolu_" if self.part.name in RESULT_TYPES else "mcptoolu_")

    def use(self, given: Mapping[str, Any]) -> Block:
        """Return the block of the call. given: its input so far."""
        name = self.part.name
        if name in RESULT_TYPES:
            return {"type": "server_tool_use", "id": self.id, "name": name, "input": dict(given)}
        server, _, tool = name.partition(".")
        return {"type": "mcp_tool_use", "id": self.id, "name": tool, "server_name": server, "input": dict(given)}

    def result(self) -> Block | None:
        """Return the block of the result, None where the reply ended before."""
        if self.cut:
            return None
        kind = RESULT_TYPES.get(self.part.name, "mcp_tool_result")
        failed = {"is_error": False} if kind == "mcp_tool_result" else {}
        return {"type": kind, "tool_use_id": self.id, **failed, "content": self.content}

    def citation(self) -> Block | None:
        """Return the citation of the first page that it found, None where it found none."""
        if not self.urls:
            return None
        return {
            "type": "web_search_result_location",
            "url": self.urls[0],
            "title": "Simulated search result 1",
            "encrypted_index": sealed(f"1 {self.urls[0]}"),
            "cited_text": _passage(1, str(self.given.get("query") or ""))[:_MOST_QUOTED],
        }


def runs_code(reply: Reply) -> bool:
    """Tell whether the reply calls a tool that runs code."""
    return any(part.kind == "hosted_call" and part.name in _CODE_TOOLS for part in reply.parts)


def named_container(request: schema.messages.CountRequest) -> str | None:
    """Return the id of the container that the request names, None for none."""
    given = request.container.get("id") if isinstance(request.container, dict) else request.container
    return given if isinstance(given, str) else None


def new_container(request: schema.messages.CountRequest) -> Block:
    """Return the container of a reply that ran code: the one that the request names, else a new one."""
    given = request.container
    skills = given.get("skills") if isinstance(given, dict) else None
    expires = _time(datetime.now(UTC) + timedelta(days=_CONTAINER_DAYS))
    return {"id": named_container(request) or new_id("container_"), "expires_at": expires, "skills": skills}


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

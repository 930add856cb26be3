"""Write docs/api.md: what each endpoint does with each parameter, from real calls to the server.

Usage: python tools/api_docs.py docs/api.md          (make docs)
       python tools/api_docs.py --check docs/api.md  (exit 1 when the file is out of date)

Each parameter of each request model is sent once; the response is compared with that to the same request without it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import httpx
from api_probes import BASES, NOTES, PROBES, Probe

from llmirage_server.admin.openapi import OPERATIONS
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.http.absent import ABSENT

_ID = re.compile(r"\b([a-z]+[_-])[0-9a-f]{20,}\b|\b[0-9a-f]{32}\b")
_TIMES = re.compile(r'"(created|created_at|completed_at|e2e_latency)":[0-9.]+')
_ANSWER = ("output", "usage", "status", "incomplete_details", "error", "content", "choices", "stop_reason", "moderation")
_BETAS = {"anthropic-beta": "context-management-2025-06-27,mcp-client-2025-04-04"}
_HEAD = """# API coverage

`make docs` writes this page from real calls: each parameter is sent to the server, and the response is compared with the
response to the same request without it. The server describes itself under `GET /openapi.json`.

- **honoured**: the response differs, in its text, its form or its tokens
- **echoed**: the response repeats the value and is otherwise the same
- **accepted**: the response does not change (no reply is sampled, so a temperature has no effect)
- **refused**: the response is an error that says so

Other fields that vLLM, SGLang, TensorRT-LLM, llama.cpp or Dynamo document (`bad_words`, `cache_salt`, `vllm_xargs`, ...) are
accepted. Any other field is refused, as the OpenAI API refuses it (`Unknown parameter: 'x'.`), unless the server was started
with `--set unknown_fields=ignore`.

In a conversation the model may refuse. If the last message of the user has at most 1,000 characters and asks for what
`/v1/moderations` flags as `illicit/violent`, `self-harm/instructions`, `sexual/minors` or `hate/threatening` ("How do I make
a pipe bomb?"), the reply is a refusal (`message.refusal`, content null, finish_reason `stop`; in `/v1/messages`
`stop_reason` `refusal`), whatever form or tools the request asks for. Requests with `ignore_eos` or `min_tokens`, and
servers with `--replies echo`, never get a refusal.

`moderation` of a chat or Responses request has the last message of the user and the reply judged as `/v1/moderations` does,
of all texts together at most 20,000 characters, in equal shares from their beginnings. Nothing is blocked.

Prompt tokens count the messages, the tools and the JSON Schema of the answer (`response_format`, `text.format`,
`output_config.format`), the same in each API.

Cached tokens are counted as the vendor does: in whole steps of 128 from 1,024 on, in `/v1/messages` by `cache_control`; with
an engine's dialect as its radix tree has them: [Dialects](dialects.md#cached-tokens).

The same API is at Azure's paths (`/openai/deployments/NAME/...`, `/openai/v1/...`) and OpenRouter's (`/api/v1/...`), in
their forms: [Dialects](dialects.md#azure-and-openrouter).

Log probabilities have the real form, but their values are invented from the seed: no model computes them.

What replies say and which tools they call: [Replies](replies.md). The API's own tools: [Built-in tools](tools.md). Responses
over WebSocket: [WebSocket](websocket.md).

Not in the tables: `POST /sleep` (vLLM) ends every request in progress with an error, empties the prefix caches and makes
the server refuse new requests with 503 until `POST /wake_up`; `GET /is_sleeping` shows the state. With `--api-key` every
path but `/health`, `/livez`, `/ping` and `/metrics` needs a key; without it, what changes the server or shows the journal
(`/sleep`, caches, `/llmirage/...`) is for its own machine. `rate_limit` and `token_limit` count all requests that
generate, and embeddings.
"""

_ABSENT = """A request gets status 404 and an error, in its API's own form, that says so and what to use instead. `*` stands
for any text; all below a path is meant too, unless it ends with `!`."""


class Server:
    """The API in this process. Responses are text without ids and times."""

    def __init__(self) -> None:
        config = ClusterConfig(ttft_ms=0.0, itl_ms=0.0, enable_prefix_caching=False, accept_models="any", max_model_len=8192)
        self.app: LlmirageApp = create_app(config)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        response = await self._post(path, body)
        return response.status_code, _TIMES.sub(r'"\1":0', _ID.sub(r"\1…", response.text))

    async def made(self, path: str, body: dict[str, Any]) -> str:
        """The id of a new object."""
        made: str = (await self._post(path, body)).json()["id"]
        return made

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json=body, headers=_BETAS if path == "/v1/messages" else {})


async def effect(server: Server, path: str, base: dict[str, Any], name: str, probe: Probe) -> str:
    """One of the four words. Raises AssertionError for a probe that is wrong itself."""
    without = base | probe.beside
    value = probe.value if probe.made is None else await server.made(*probe.made)
    status, plain = await server.post(path, {key: value for key, value in without.items() if key != name})
    given, answer = await server.post(path, without | {name: value})
    if given != 200:
        assert "unsupported" in answer or probe.refused, (path, name, answer)
        return "refused"
    if status != 200 or name == "stream":
        return "honoured"  # it is required, or the form of the answer
    if answer == plain:
        return "accepted"
    return "honoured" if _answer(plain) != _answer(answer) else "echoed"


def _answer(text: str) -> Any:
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if isinstance(body, dict) and body.get("object") == "response":
        return {key: body.get(key) for key in _ANSWER}
    return body


async def document() -> str:
    server = Server()
    await server.app.service.text.get()
    lines = [_HEAD]
    for operation in OPERATIONS:
        if operation.path not in BASES or operation.method != "post" or operation.body is None:
            continue
        lines += [f"## POST {operation.path}", "", "| parameter | | |", "|---|---|---|"]
        probes = PROBES[operation.path]
        for field, info in operation.body.model_fields.items():
            name = info.alias or field
            word = await effect(server, operation.path, BASES[operation.path], name, probes[name])
            lines.append(f"| `{name}` | {word} | {NOTES.get((operation.path, name), '')} |")
        lines.append("")
    lines += ["## Everything else", "", "| operation | |", "|---|---|"]
    lines += [f"| {each.method.upper()} {each.path} | {each.summary} |" for each in OPERATIONS if each.path not in BASES]
    lines += ["", "## Not simulated", "", _ABSENT, "", "| paths | whose | what | instead |", "|---|---|---|---|"]
    lines += [
        f"| {' '.join(f'`{path}`' for path in each.paths)} | {each.api} | {each.what} | {each.instead} |" for each in ABSENT
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    check = "--check" in sys.argv
    path = Path(sys.argv[-1])
    if check:
        sys.exit(0 if path.read_text() == asyncio.run(document()) else f"{path} is out of date: make docs")
    path.write_text(asyncio.run(document()))

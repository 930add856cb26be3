"""What is asked of an endpoint before the load starts: whether it is there, and knows the model and the key."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.targets.endpoints import TurnRequest, endpoint_named
from llmirage_client.targets.fault import Fault
from llmirage_client.targets.target import Call, EndpointTarget

_WITHIN_S = 10.0
_FEWEST_TOKENS = 16  # the least that the Responses API takes as max_output_tokens
_SKIP = "--no-preflight skips this request"


async def preflight_problem(endpoint: EndpointSettings, model: str, path: str | None) -> str | None:
    """Why no request of the run can succeed, in one line; None: nothing speaks against it.

    The list of models is asked for. Only if it is refused or lacks the model, a short request is sent: many gateways hide
    the list, and many servers answer for names that are not in it. model: empty if the workload's requests name theirs.
    path: of the requests, where it is not the API's own.
    """
    for url in endpoint.urls:
        timeout_s = min(_WITHIN_S, endpoint.timeout_s or _WITHIN_S)
        one = dataclasses.replace(endpoint, urls=(url,), retries=0, keeps_conversations=False, timeout_s=timeout_s)
        target = one.target()
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await target.get("/models")
            names = _names(body) if status == 200 else []
            if model and endpoint.api != "raw" and (not names or model not in names):
                problem = await _refusal(target, endpoint, model, path, names)
                if problem is not None:
                    return f"{url}: {problem} ({_SKIP})"
        except TimeoutError:
            return f"{url}: no answer within {timeout_s:g} s ({_SKIP})"
        except Fault as fault:
            return f"{url}: {fault.message} ({_SKIP})"
        finally:
            await target.close()
    return None


def _names(body: bytes) -> list[str]:
    try:
        return [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):
        return []


async def _refusal(
    target: EndpointTarget, endpoint: EndpointSettings, model: str, path: str | None, names: list[str]
) -> str | None:
    api = endpoint_named(endpoint.api)
    body = api.body(TurnRequest(api.items([{"role": "user", "content": "Hello"}]), model, False, max_tokens=_FEWEST_TOKENS))
    call = Call(
        path or api.path,
        body,
        stream=False,
        new_reply=api.new_reply,
        api=api.name,
        from_root=path is not None,
        empty_ok=True,
    )
    error = (await target.send(call)).error
    if error is None or not _is_final(error, model):
        return None
    if error.code in (401, 403):
        return f"the key is refused, HTTP {error.code}: {error.message}; --api-key sets it"
    served = f"; it serves {', '.join(names)}" if names else ""
    return f"{'no HTTP reply' if error.code is None else f'HTTP {error.code}'} for model {model}: {error.message}{served}"


def _is_final(error: RequestError, model: str) -> bool:
    """Whether every other request would fail likewise: not an overload, nor a parameter that this request alone has."""
    names_it = re.search(rf"(?<!\w){re.escape(model)}(?!\w)", error.message) is not None
    return error.code in (401, 403, 404, 405) or error.type == "redirect" or (error.code == 400 and names_it)

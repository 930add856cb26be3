"""What is asked of an endpoint before the load starts: is it there, does it know model and key, what runs there."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.targets.endpoints import TurnRequest, endpoint_named
from llmirage_client.targets.engine_settings import sglang_settings, vllm_config, vllm_metric_labels, vllm_settings
from llmirage_client.targets.fault import Fault
from llmirage_client.targets.target import Call, EndpointTarget
from llmirage_client.targets.wire_json import parse

_WITHIN_S = 10.0
_FEWEST_TOKENS = 16  # the least that the Responses API takes as max_output_tokens
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}  # by what the list of models says of its owner
_SKIP = "--set preflight=false skips this request"


@dataclass(slots=True)
class Preflight:
    """problem: why no request of the run can succeed, in one line; None: nothing speaks against it.

    deployment: what the endpoint runs, as far as it says; see RunResult. simulated: the URLs of its servers if all of them
    are of llmirage.
    """

    problem: str | None = None
    deployment: list[dict[str, Any]] = field(default_factory=list)
    simulated: tuple[str, ...] = ()


async def preflight(endpoint: EndpointSettings, model: str, path: str | None) -> Preflight:
    """Ask every server of the endpoint.

    The list of models is asked for. Only if it is refused or lacks the model, a short request is sent: many gateways hide
    the list, and many servers answer for names that are not in it. model: empty if the workload's requests name theirs.
    path: of the requests, where it is not the API's own.
    """
    found, owners = Preflight(), set[str]()
    for url in endpoint.urls:
        timeout_s = min(_WITHIN_S, endpoint.timeout_s or _WITHIN_S)
        one = dataclasses.replace(endpoint, urls=(url,), retries=0, keeps_conversations=False, timeout_s=timeout_s)
        target = one.target()
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await target.get("/models")
            models = _models(body) if status == 200 else []
            names = [str(entry["id"]) for entry in models]
            if model and endpoint.api != "raw" and (not names or model not in names):
                problem = await _refusal(target, endpoint, model, path, names)
                if problem is not None:
                    return Preflight(f"{url}: {problem} ({_SKIP})")
            of_server = {str(entry.get("owned_by")) for entry in models}
            owners |= of_server or {""}
            _add(found.deployment, await _deployment(target, models))
        except TimeoutError:
            return Preflight(f"{url}: no answer within {timeout_s:g} s ({_SKIP})")
        except Fault as fault:
            return Preflight(f"{url}: {fault.message} ({_SKIP})")
        finally:
            await target.close()
    if owners == {"llmirage"}:
        found.simulated = endpoint.urls
    return found


def _models(body: bytes) -> list[dict[str, Any]]:
    try:
        return [entry for entry in parse(body)["data"] if "id" in entry]
    except (ValueError, TypeError, KeyError):
        return []


async def _deployment(target: EndpointTarget, models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what one server runs. Only engines are asked, which have something to say; a gateway is not."""
    owners = {str(entry.get("owned_by")) for entry in models}
    if "llmirage" in owners:
        pools = _object(await _asked(target, "/server_info")).get("deployment")
        return [pool for pool in pools if isinstance(pool, dict)] if isinstance(pools, list) else []
    engine = next((engine for owner, engine in _ENGINES.items() if owner in owners), None)
    if engine is None:
        return []
    pool: dict[str, Any] = {"engine": engine, "model": str(models[0].get("root") or models[0]["id"])}
    if engine == "sglang":
        info = _object(await _asked(target, "/get_server_info"))
        return [pool | {"model": info.get("model_path", pool["model"]), **sglang_settings(info)}] if info else []
    if engine == "vllm":
        info = _object(await _asked(target, "/server_info?config_format=json"))
        if isinstance(pools := info.get("deployment"), list):  # ours, in vLLM's words
            return [pool for pool in pools if isinstance(pool, dict)]
        pool |= vllm_settings(vllm_metric_labels(await _asked(target, "/metrics")) | vllm_config(info.get("vllm_config")))
        if pool.get("data_parallel_size", 1) > 1:  # the metrics are those of a rank
            pool.pop("num_gpu_blocks_override", None)
    return [pool]


async def _asked(target: EndpointTarget, path: str) -> str:
    """Return the answer to a GET; "" where there is none."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            status, body = await target.get(path, from_root=True)
        return body.decode("utf-8", "replace") if status == 200 else ""
    except (TimeoutError, Fault):
        return ""


def _object(text: str) -> dict[str, Any]:
    try:
        value = parse(text.encode())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _add(pools: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """Equal instances of several servers are instances of one pool."""
    for pool in more:
        same = next((one for one in pools if one | {"instances": 0} == pool | {"instances": 0}), None)
        if same is None:
            pools.append(pool)
        else:
            same["instances"] = same.get("instances", 1) + pool.get("instances", 1)


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


PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """kind: llmirage and vllm take token ids as prompts of /completions. models: names it serves, in its order.

    error: why nothing could be learned.
    """

    kind: Literal["llmirage", "vllm", "other"] = "other"
    models: list[str] = field(default_factory=list)
    error: str | None = None


async def probe(target: EndpointTarget, timeout_s: float = PROBE_TIMEOUT_S) -> EndpointInfo:
    """Ask for GET /models once.

    Never raises: an endpoint that does not answer properly is of kind "other", with no models.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await target.get("/models")
    except TimeoutError:
        return EndpointInfo(error=f"no answer within {timeout_s:g} s")
    except Fault as error:
        return EndpointInfo(error=str(error))
    if status != 200:
        return EndpointInfo(error=f"HTTP {status}")
    try:
        value = parse(body)
    except ValueError:
        return EndpointInfo(error="the list of models is not JSON")
    data = value.get("data") if isinstance(value, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    models = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    owners = {entry.get("owned_by") for entry in entries}
    kind: Literal["llmirage", "vllm", "other"] = (
        "llmirage" if "llmirage" in owners else "vllm" if "vllm" in owners else "other"
    )
    return EndpointInfo(kind, models)

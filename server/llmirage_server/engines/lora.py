"""LoRA adapters at run time: vLLM's /v1/load_lora_adapter, SGLang's /load_lora_adapter, and their counterparts."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from llmirage_server.config.lora import LoraModule
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.adapters import LoraAdapters
from llmirage_shared.wire import schema
from llmirage_shared.wire.errors import ApiError

_DISABLED = "LoRA is not enabled: start the server with --set enable_lora=true or lora_modules."


class LoraHandler:
    """vLLM's texts and statuses are those of vllm/entrypoints/openai/models/serving.py, but for 400 where it has 500."""

    def __init__(self, adapters: LoraAdapters) -> None:
        self._adapters = adapters

    async def load(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.LoadLoraAdapter.check)
        name, path = request.lora_name, request.lora_path
        if not name or not path:
            return _refused(exchange, "Both 'lora_name' and 'lora_path' must be provided.")
        if not request.load_inplace and name in self._adapters.loaded(exchange.instance):
            return _refused(
                exchange,
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
            )
        try:
            await self._load(exchange, name, path)
        except ValueError as error:
            return _refused(exchange, str(error), "BadRequestError")
        return _done(exchange, f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.UnloadLoraAdapter.check)
        name = request.lora_name
        if not name:
            return _refused(exchange, "'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._adapters.loaded(exchange.instance):
            return _refused(exchange, f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404)
        self._adapters.unload(name, exchange.instance)
        return _done(exchange, f"Success: LoRA adapter '{name}' removed successfully.")

    async def load_sglang(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.LoadLoraAdapter.check)
        loaded = self._adapters.loaded(exchange.instance)
        if request.lora_name in loaded:
            return self._outcome(exchange, f"LoRA with name {request.lora_name} already exists. Loaded LoRAs: {[*loaded]}")
        try:
            await self._load(exchange, request.lora_name, request.lora_path)
        except ValueError as error:
            return self._outcome(exchange, str(error))
        return self._outcome(exchange)

    async def unload_sglang(self, exchange: HttpExchange) -> Response:
        request = await exchange.checked(schema.engines.UnloadLoraAdapter.check)
        loaded = self._adapters.loaded(exchange.instance)
        if request.lora_name not in loaded:
            return self._outcome(exchange, f"LoRA with name {request.lora_name} does not exist. Loaded LoRAs: {[*loaded]}")
        self._adapters.unload(request.lora_name, exchange.instance)
        return self._outcome(exchange)

    async def _load(self, exchange: HttpExchange, name: str, path: str) -> None:
        if not self._adapters.enabled(exchange.instance):
            raise ValueError(_DISABLED)
        if name in exchange.scope["app"].model_names:
            raise ValueError(f"A model has the name '{name}'.")
        await self._adapters.load(LoraModule(name, path), exchange.instance)

    def _outcome(self, exchange: HttpExchange, error: str | None = None) -> Response:
        body = {
            "success": error is None,
            "error_message": error,
            "loaded_adapters": self._adapters.loaded(exchange.instance),
        }
        return exchange.json(body, 200 if error is None else 400)


def _done(exchange: HttpExchange, text: str) -> Response:
    return exchange.content(text.encode(), b"text/plain; charset=utf-8")


def _refused(exchange: HttpExchange, message: str, kind: str = "InvalidUserInput", status: int = 400) -> Response:
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return exchange.refusal(ApiError(message, status=status), body)

"""POST /v1/responses and what belongs to it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Generation, Prompt, Service
from llmirage_server.api.logprobs import ReplyLogprobs
from llmirage_server.api.models import ServedModel
from llmirage_server.api.responses import items as item_forms
from llmirage_server.api.responses.background import BackgroundRun, follow, replayed
from llmirage_server.api.responses.hosted import listed
from llmirage_server.api.responses.items import Item
from llmirage_server.api.responses.resource import new_response, response_usage
from llmirage_server.api.responses.writer import ResponseWriter
from llmirage_server.api.shape import Shape, check_names, response_shape
from llmirage_server.api.stream import TokenStream
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import last_user_text
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.json_body import parse_object
from llmirage_shared.wire.paging import integer, page
from llmirage_shared.wire.responses import new_id
from llmirage_shared.wire.sampling import Sampling

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.responses import InputFields, ResponseRequest

_LOGPROBS = "message.output_text.logprobs"


@dataclass(slots=True)
class _Context:
    """The prompt of a response. items: everything the model sees, in order; new: what this request brought."""

    items: list[Item]
    new: list[Item]
    conversation: str | None


class ResponsesEndpoint:
    """Creates, keeps, lists and deletes responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[str, BackgroundRun] = {}

    async def create(self, exchange: Exchange) -> Response:
        request = self._parsed(parse_object(await exchange.body()))
        service = self._service
        if request.model is None:
            raise errors.missing("model")
        served = service.models.find(request.model)
        context = self._context(request)
        shape = response_shape(request, _messages(request, context.items), context.items)
        check_names(shape)
        generation, context = await self._generation(request, context, shape, served, exchange)
        [choice] = generation.choices
        response_id = new_id("resp_")
        response = new_response(response_id, int(time.time()), request, request.model, context.conversation)
        logprobs = None
        if _LOGPROBS in (request.include or ()) or request.top_logprobs:
            tokenizer = (await service.text.get()).encoder.tokenizer
            logprobs = ReplyLogprobs(choice.reply, tokenizer, request.top_logprobs or 0).entry
        declared = [tool.model_dump(by_alias=True, exclude_unset=True) for tool in request.tools or ()]
        writer = ResponseWriter(choice, request, response, logprobs, listed(declared, context.items), context.items)

        def finished() -> Item:
            self._finish(response, writer, generation)
            self._store(response, context)
            return response

        if request.background:
            run = BackgroundRun(generation, writer, finished, lambda: self._store(response, context))
            self._running[response_id] = run
            run.ended = lambda: self._running.pop(response_id, None)
            created = {**response}
            self._store(response, context)
            run.start()
            return follow(run, exchange, 0) if request.stream else exchange.json(created)
        if request.stream:
            return TokenStream(
                generation,
                exchange,
                [writer],
                lambda: writer.event(f"response.{finished()['status']}", response=response),
                lambda error: _failed(writer, error),
                opening=writer.opening(),
            )
        await generation.finish(exchange)
        return exchange.json(finished())

    async def retrieve(self, exchange: Exchange) -> Response:
        response_id = exchange.scope["path_params"]["id"]
        stream = exchange.query("stream") == "true"
        after = exchange.query("starting_after")
        first = 0 if after is None else integer("starting_after", after) + 1
        if stream and response_id in self._running:
            return follow(self._running[response_id], exchange, first)
        response = self._found(response_id)["response"]
        return replayed(response, exchange, first) if stream else exchange.json(response)

    async def delete(self, exchange: Exchange) -> Response:
        response_id = exchange.scope["path_params"]["id"]
        record = self._found(response_id)
        if (run := self._running.get(response_id)) is not None:
            run.cancel()
        for item in [*record["input"], *record["response"]["output"]]:
            if self._service.state.get("item", item["id"]) == {"response": response_id}:
                self._service.state.delete("item", item["id"])
        self._service.state.delete("response", response_id)
        return exchange.json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, exchange: Exchange) -> Response:
        response_id = exchange.scope["path_params"]["id"]
        record = self._found(response_id)
        if not record["response"]["background"]:
            raise ApiError("Cannot cancel a synchronous response.", param="response_id")
        if (run := self._running.get(response_id)) is not None:
            run.cancel()
        return exchange.json(self._found(response_id)["response"])

    async def input_items(self, exchange: Exchange) -> Response:
        record = self._found(exchange.scope["path_params"]["id"])
        return exchange.json(page(record["input"], exchange.query))

    async def input_tokens(self, exchange: Exchange) -> Response:
        """How many tokens the prompt of such a request would have."""
        from llmirage_shared.wire.schema.responses import InputFields
        from llmirage_shared.wire.schema.validation import check

        request = check(InputFields, parse_object(await exchange.body()))
        self._service.check_fields(request, "responses")
        if request.model is not None:
            self._service.models.find(request.model)
        context = self._context(request)
        ids = await self._encode(request, context.items)
        return exchange.json({"object": "response.input_tokens", "input_tokens": len(ids)})

    async def compact(self, exchange: Exchange) -> Response:
        """The conversation in short: what the user said stays, the rest becomes one opaque item."""
        from llmirage_shared.wire.schema.responses import ResponseRequest
        from llmirage_shared.wire.schema.validation import check

        request = check(ResponseRequest, parse_object(await exchange.body()))
        self._service.check_fields(request, "responses")
        if request.model is None:
            raise errors.missing("model")
        served = self._service.models.find(request.model)
        context = self._context(request)
        generation, context = await self._generation(request, context, Shape(), served, exchange)
        await generation.finish(exchange)
        [choice] = generation.choices
        summary = {
            "id": item_forms.new_item_id("compaction"),
            "type": "compaction",
            "encrypted_content": item_forms.sealed(choice.reply.text),
        }
        said = [item for item in context.items if item.get("type") == "message" and item.get("role") == "user"]
        usage = response_usage(generation.usage())
        body = {"id": new_id("resp_"), "object": "response.compaction", "created_at": int(time.time())}
        return exchange.json({**body, "output": [*said, summary], "usage": usage})

    def _parsed(self, body: Mapping[str, Any]) -> ResponseRequest:
        from llmirage_shared.wire.schema.responses import ResponseRequest
        from llmirage_shared.wire.schema.validation import check

        request = check(ResponseRequest, body)
        self._service.check_fields(request, "responses")
        if request.input is None and request.prompt is None and request.previous_response_id is None:
            raise errors.missing("input")
        if request.background and request.store is False:
            raise ApiError("Background mode requires store to be true.", param="background", code="invalid_value")
        if request.stream_options is not None and not request.stream:
            raise errors.only_with(
                "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            )
        return request

    def _context(self, request: InputFields) -> _Context:
        state = self._service.state
        given = request.conversation
        conversation = given if given is None or isinstance(given, str) else given.id
        if conversation is not None and request.previous_response_id is not None:
            raise ApiError(
                "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you are only providing "
                "one of these parameters.",
                code="mutually_exclusive_parameters",
            )
        before: list[Item] = []
        if request.previous_response_id is not None:
            record = state.get("response", request.previous_response_id)
            if record is None:
                raise ApiError(
                    f"Previous response with id '{request.previous_response_id}' not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            before = record["items"]
        if conversation is not None:
            found = state.get("conversation", conversation)
            if found is None:
                raise ApiError(f"Conversation with id '{conversation}' not found.", status=404, param="conversation")
            before = found["items"]
        written = request.input
        brought: Sequence[Mapping[str, Any]] = []
        if isinstance(written, str):
            brought = [{"type": "message", "role": "user", "content": written}]
        elif written is not None:
            plain = [item.model_dump(by_alias=True, exclude_unset=True) for item in written]
            known = {item["id"]: item for item in before if "id" in item}
            brought = item_forms.resolved(plain, lambda key: known.get(key) or self._item(key))
        new = item_forms.stored(brought)
        everything = [*before, *new]
        item_forms.check_outputs(everything)
        return _Context(everything, new, conversation)

    def _item(self, key: str) -> Item | None:
        """An item of any stored response."""
        state = self._service.state
        place = state.get("item", key)
        record = None if place is None else state.get("response", place["response"])
        if record is None:
            return None
        return next((item for item in record["items"] if item.get("id") == key), None)

    async def _encode(self, request: InputFields, items: Sequence[Item]) -> Any:
        form = request.text.format if request.text else None
        schema = form.schema_ if form is not None and form.type == "json_schema" else None
        return await self._service.text.encode_chat(_messages(request, items), _chat_tools(request), schema=schema)

    async def _generation(
        self, request: ResponseRequest, context: _Context, shape: Shape, served: ServedModel, exchange: Exchange
    ) -> tuple[Generation, _Context]:
        """The reply under way; with truncation auto the oldest items are left out until the prompt fits."""
        sampling = Sampling(
            max_tokens=request.max_output_tokens,
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
            seed=request.seed,
            stream=bool(request.stream),
            session_key=request.prompt_cache_key or request.user or context.conversation,
        )
        items = context.items
        while True:
            ids = await self._encode(request, items)
            prompt = Prompt(ids, last_user_text(_messages(request, items)))
            try:
                generation = await self._service.generate([prompt], sampling, served, exchange, "input", shape)
            except ApiError as error:
                if error.code != "context_length_exceeded" or request.truncation != "auto" or len(items) < 2:
                    raise
                items = _without_oldest(items)
                continue
            return generation, replace(context, items=items)

    def _finish(self, response: Item, writer: ResponseWriter, generation: Generation) -> None:
        [choice] = generation.choices
        response["output"] = writer.finished_items()
        response["usage"] = response_usage(generation.usage())
        if choice.reply.finish_reason == "length":
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["status"] = "completed"
            response["completed_at"] = int(time.time())

    def _store(self, response: Item, context: _Context) -> None:
        state = self._service.state
        ended = response["status"] in ("completed", "incomplete")
        if response["store"]:
            items = [*context.items, *response["output"]]
            record = {"response": response, "input": context.new, "items": items}
            state.put("response", response["id"], record)
            for item in [*context.new, *response["output"]]:  # where an item_reference finds it
                if state.get("item", item["id"]) is None:
                    state.put("item", item["id"], {"response": response["id"]})
        if context.conversation is not None and ended:
            conversation = state.get("conversation", context.conversation)
            if conversation is not None:  # deleted meanwhile
                conversation["items"] += [*context.new, *response["output"]]
                state.put("conversation", context.conversation, conversation)

    def _found(self, response_id: str) -> dict[str, Any]:
        record = self._service.state.get("response", response_id)
        if record is None:
            raise ApiError(f"Response with id '{response_id}' not found.", status=404, param="response_id")
        return record


def _messages(request: InputFields, items: Sequence[Item]) -> list[dict[str, Any]]:
    messages = item_forms.messages(items)
    if request.prompt is not None:
        messages = [{"role": "developer", "content": _template(request.prompt)}, *messages]
    instructions = request.instructions
    if isinstance(instructions, str):
        return [{"role": "system", "content": instructions}, *messages]
    if instructions:
        plain = [item.model_dump(by_alias=True, exclude_unset=True) for item in instructions]
        return [*item_forms.messages(plain), *messages]
    return messages or [{"role": "user", "content": ""}]


def _template(prompt: Mapping[str, Any]) -> str:
    """What stands for a prompt template, whose text only its maker knows: its name and what its variables are."""
    lines = [f"Prompt {prompt.get('id', '')}{' version ' + str(prompt['version']) if prompt.get('version') else ''}"]
    for name, value in (prompt.get("variables") or {}).items():
        written = (
            value
            if isinstance(value, str)
            else value.get("text", value.get("type", ""))
            if isinstance(value, dict)
            else value
        )
        lines.append(f"{name}: {written}")
    return "\n".join(lines)


def _chat_tools(request: InputFields) -> list[dict[str, Any]] | None:
    """Tools in chat's form, as the prompt shows them."""
    tools: list[dict[str, Any]] = []
    for tool in request.tools or ():
        plain = tool.model_dump(by_alias=True, exclude_unset=True)
        kind = plain.pop("type")
        tools.append({"type": kind, kind: plain} if kind in ("function", "custom") else {"type": kind, **plain})
    return tools or None


def _without_oldest(items: list[Item]) -> list[Item]:
    """The items without the first of them, nor the output of a call that went with it."""
    calls = {items[0].get("call_id")} - {None}
    return [item for item in items[1:] if item.get("call_id") not in calls]


def _failed(writer: ResponseWriter, error: ApiError) -> bytes:
    response = {
        **writer.response,
        "status": "failed",
        "error": {"code": error.code or "server_error", "message": error.message},
    }
    return writer.event("response.failed", response=response)

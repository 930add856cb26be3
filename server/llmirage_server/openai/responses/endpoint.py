"""POST /v1/responses, and the endpoints of stored responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.json_pieces import written
from llmirage_server.openai.responses.background import BackgroundRun, error_of, follow, replayed
from llmirage_server.openai.responses.context import (
    ResponseContext,
    answer_schema,
    chat_form,
    chat_tools,
    compacted_since_user,
    input_of,
    most_left_out,
    read_context,
    store_context,
    without_oldest,
)
from llmirage_server.openai.responses.hosted import ListedTools, OutputItem, chosen, hosted_tools, listed
from llmirage_server.openai.responses.writer import CompactionOutput, ResponseWriter, new_response, response_usage
from llmirage_server.replies.compose import compacted
from llmirage_server.replies.moderation import moderated
from llmirage_server.replies.reply import ANY_OBJECT, Part, Tool, ToolChoice
from llmirage_server.service.constraints import (
    LENGTH_FACTORS,
    AnswerForm,
    ReplyConstraints,
    check_names,
    custom_tool,
    instructions_of,
    plain,
    schema_problem,
    structured_form,
    thought_tokens,
    tool_choice,
)
from llmirage_server.service.generation import Generation, TokenStream
from llmirage_server.service.logprobs import ReplyLogprobs
from llmirage_server.service.models import ServedModel
from llmirage_server.service.prompts import ContextWindow, CountedTokens, EncodedPrompt
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.service.unstreamed import finish
from llmirage_server.state.conversation import Item
from llmirage_server.state.state import Breaks, State, stored
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import chat_history, last_user_text
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id
from llmirage_shared.wire.paging import integer, page
from llmirage_shared.wire.refusals import refuse_response, refuse_short_reply
from llmirage_shared.wire.sampling import Sampling

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by finish reason
_MOST_REPEATED_BYTES = 4 << 20  # of a request in its response: several events have it, each written at once
_MOST_BACKGROUND_BYTES = 256 << 20  # of the events of unfinished responses, which are kept for those who follow them
_LOGPROBS = "message.output_text.logprobs"


class ResponsesHandler(ServiceHandler):
    """Creates, stores, lists and deletes responses."""

    def __init__(self, service: Service, state: State) -> None:
        """Keep what answers. state: has the responses that are stored."""
        super().__init__(service)
        self._state = state
        self._running: dict[str, BackgroundRun] = {}

    async def create(self, exchange: HttpExchange) -> Response:
        service = self._service
        request = await self._request(exchange)
        _check_combinations(request)
        served, context, messages = await self._asked(exchange, request)
        constraints = await exchange.planned(
            lambda: response_constraints(request, messages, context.items), "tools", service.text.plan_in_thread
        )
        generation, context = await self._generation(request, context, messages, constraints, served, exchange)
        [choice] = generation.choices
        response = await self._begun(exchange, request, context)
        response_id = response["id"]
        logprobs = None
        if _LOGPROBS in (request.include or ()) or request.top_logprobs:
            top = request.top_logprobs or 0
            logprobs = ReplyLogprobs(choice.reply, await service.tokenizer(), top)
            at_once = request.stream or request.background or request.store is not False
            exchange.expect_logprobs(len(choice.reply.ids) * (1 + top), bool(at_once))
        declared = () if request.compacts else request.plain_tools
        servers = await exchange.apart(lambda: listed(declared, context.items))
        first: list[OutputItem] = [ListedTools(item) for item in servers]
        if not request.compacts and choice.request.prompt_tokens > request.compact_threshold:
            kept = await exchange.planned(lambda: compacted(messages), "input", service.text.plan_in_thread)
            first.insert(0, CompactionOutput(Part("hosted_call", 0, 0), kept))
        options = request.stream_options
        obfuscated = service.dialect.obfuscation and (options is None or options.include_obfuscation is not False)
        writer = ResponseWriter(choice, request, response, logprobs, first, context.items, obfuscated)

        def store() -> None:
            self._keep(exchange, context, response)

        def finished() -> Item:
            _complete(response, writer, generation)
            if (asked := request.moderation) is not None:
                said, replied = moderated([last_user_text(messages), choice.reply.text], asked.model)
                response["moderation"] = {"input": said, "output": replied}
            store()
            return response

        if request.background:
            created = {**response}
            run = BackgroundRun(generation, writer, finished, store, self._state)
            self._take_room(run, 0 if logprobs is None else len(choice.reply.ids) * (1 + (request.top_logprobs or 0)))
            await exchange.apart(run.keep)
            self._running[response_id] = run
            run.ended = lambda: self._running.pop(response_id, None)
            run.start()
            return follow(run, exchange, 0, service.responses.shutdown) if request.stream else exchange.json(created)
        if request.stream:
            return TokenStream(
                generation,
                exchange,
                [writer],
                lambda: writer.event(f"response.{finished()['status']}", response=response),
                lambda error: writer.event(
                    "response.failed", response={**response, "status": "failed", "error": error_of(error)}
                ),
                opening=writer.opening(),
            ).start()
        await finish(generation, exchange)
        # Another response may change the conversation meanwhile.
        return await exchange.large_json(await exchange.apart(finished) if context.conversation is None else finished())

    async def retrieve(self, exchange: HttpExchange) -> Response:
        service, response_id = self._service, exchange.path_id()
        stream = exchange.query("stream") == "true"
        after = exchange.query("starting_after")
        first = 0 if after is None else integer("starting_after", after) + 1
        if (run := self._running.get(response_id)) is not None:
            return follow(run, exchange, first, service.responses.shutdown) if stream else exchange.json(run.response)
        response = (await self._found(exchange))["response"]
        if not stream:
            return await exchange.large_json(response)
        return await replayed(self._state, response, exchange, first, service.responses.shutdown)

    async def delete(self, exchange: HttpExchange) -> Response:
        response_id = exchange.path_id()
        record = await self._found(exchange)
        if (run := self._running.get(response_id)) is not None:
            run.cancel()
        breaks = Breaks()
        for item in [*input_of(record), *record["response"]["output"]]:
            if self._state.get("item", item["id"]) == {"response": response_id}:
                self._state.delete("item", item["id"])
            await breaks.maybe()
        for kind in ("events", "response"):
            self._state.delete(kind, response_id)
        return exchange.json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, exchange: HttpExchange) -> Response:
        run = self._running.get(exchange.path_id())
        record = await self._found(exchange)
        if not record["response"]["background"]:
            raise ApiError("Cannot cancel a synchronous response.", param="response_id")
        if run is not None:
            run.cancel()
            record = await self._found(exchange)
        return await exchange.large_json(record["response"])

    async def input_items(self, exchange: HttpExchange) -> Response:
        record = await self._found(exchange)
        return await exchange.large_json(page(input_of(record), exchange.query))

    async def input_tokens(self, exchange: HttpExchange) -> Response:
        """Answer with the number of tokens of such a request's prompt."""
        service = self._service
        body = await exchange.json_object()
        request = await exchange.apart(lambda: schema.responses.InputFields.check(body, service.documented_only))
        if service.dialect.strict:
            await exchange.apart(lambda: refuse_response(body))
        served = service.models.find(service.models.served[0] if request.model is None else request.model)
        context = await read_context(exchange, self._state, request, service.dialect.strict)
        messages = await exchange.apart(lambda: chat_form(request, context.items))
        ids = await self._encode(exchange, request, messages, CountedTokens.of(served.max_model_len, "input"))
        return exchange.json({"object": "response.input_tokens", "input_tokens": len(ids)})

    async def compact(self, exchange: HttpExchange) -> Response:
        """Shorten a conversation: the user's messages stay, the rest becomes one opaque item."""
        request = await self._request(exchange)
        served, context, messages = await self._asked(exchange, request)
        constraints = compacting(messages)
        generation, context = await self._generation(request, context, messages, constraints, served, exchange)
        await finish(generation, exchange)
        [choice] = generation.choices
        summary = CompactionOutput(choice.reply.all_parts[-1], choice.reply.text).finished([])
        kept = [item for item in context.items if item.get("type") == "message" and item.get("role") == "user"]
        usage = response_usage(generation.usage())
        body = {"id": new_id("resp_"), "object": "response.compaction", "created_at": int(time.time())}
        return await exchange.large_json({**body, "output": [*kept, summary], "usage": usage})

    def bytes_kept(self) -> int:
        """Return the bytes of the events of unfinished responses in the background."""
        return sum([run.bytes_kept() for run in self._running.values()])

    def _take_room(self, run: BackgroundRun, logprobs: int) -> None:
        """Let the events of a new run count, as many as they may become. Raises ApiError (503) without room for them."""
        run.expected_bytes = run.bytes_expected(logprobs)
        if run.expected_bytes + sum([other.expected_bytes for other in self._running.values()]) > _MOST_BACKGROUND_BYTES:
            raise errors.too_much_in_background(_MOST_BACKGROUND_BYTES)

    async def _request(self, exchange: HttpExchange) -> schema.responses.ResponseRequest:
        """Return the checked body. Raises ApiError."""
        body, strict = await exchange.json_object(), self._service.dialect.strict
        if strict:
            refuse_short_reply(body)
        documented_only = self._service.documented_only
        request = await exchange.apart(lambda: schema.responses.ResponseRequest.check(body, documented_only))
        if strict:
            await exchange.apart(lambda: refuse_response(body))
        return request

    async def _asked(
        self, exchange: HttpExchange, request: schema.responses.ResponseRequest
    ) -> tuple[ServedModel, ResponseContext, list[dict[str, Any]]]:
        """Return the model that answers, the context of the request, and that in chat's form. Raises ApiError."""
        if request.model is None:
            raise errors.missing("model")
        served = self._service.models.asked(request.model, exchange)
        context = await self._context(exchange, request)
        return served, context, await exchange.apart(lambda: chat_form(request, context.items))

    async def _begun(
        self, exchange: HttpExchange, request: schema.responses.ResponseRequest, context: ResponseContext
    ) -> Item:
        """Return a new response. Raises ApiError (400) for one of which each event would repeat too much of the request."""
        assert request.model is not None
        response = new_response(new_id("resp_"), int(time.time()), request, request.model, context.conversation)
        if exchange.is_large and (request.stream or request.background):
            repeated = await exchange.apart(lambda: sum(map(len, written(response))))
            if repeated > _MOST_REPEATED_BYTES:
                known = (
                    f"Each event of the response would repeat {repeated} bytes of the request (instructions, tools, user)"
                )
                raise ApiError(f"{known}, and at most {_MOST_REPEATED_BYTES} are repeated.")
        return response

    async def _context(self, exchange: HttpExchange, request: schema.responses.ResponseRequest) -> ResponseContext:
        """Return the context of a request. Raises ApiError as `read_context` does."""
        return await read_context(exchange, self._state, request, self._service.dialect.strict)

    def _keep(self, exchange: HttpExchange, context: ResponseContext, response: Item) -> None:
        """Store a response with its context, if it is to be stored."""
        store_context(self._state, context, response)

    async def _encode(
        self,
        exchange: HttpExchange,
        request: schema.responses.InputFields,
        messages: Sequence[Mapping[str, Any]],
        window: ContextWindow | None = None,
    ) -> TokenIds:
        form = answer_schema(request)
        return await self._service.encode_chat(exchange, messages, chat_tools(request), answer_schema=form, window=window)

    async def _generation(
        self,
        request: schema.responses.ResponseRequest,
        context: ResponseContext,
        messages: Sequence[Mapping[str, Any]],
        constraints: ReplyConstraints,
        served: ServedModel,
        exchange: HttpExchange,
    ) -> tuple[Generation, ResponseContext]:
        """Return the planned reply, and the context with the items that it has seen.

        With truncation "auto" that is the context without the oldest items, as few of them as make the prompt fit.
        messages: the context in chat's form.
        """
        sampling = Sampling(
            max_tokens=request.max_output_tokens,
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
            seed=request.seed,
            stream=bool(request.stream),
            session_key=request.prompt_cache_key or request.user or context.conversation,
        )
        if request.truncation == "auto":
            items = await self._that_fit(exchange, request, context.items, served)
            context = replace(context, items=items)
            messages = await exchange.apart(lambda: chat_form(request, items))
        ids = await self._encode(exchange, request, messages, ContextWindow(served.max_model_len, "input"))
        prompts = [EncodedPrompt(ids, last_user_text(messages))]
        return await self._service.generate(prompts, sampling, served, exchange, "input", constraints), context

    async def _that_fit(
        self, exchange: HttpExchange, request: schema.responses.ResponseRequest, items: list[Item], served: ServedModel
    ) -> list[Item]:
        window = ContextWindow(served.max_model_len, "input")
        most_tokens = served.max_model_len - (request.max_output_tokens or 1)

        async def fits(left_out: int) -> bool:
            messages = await exchange.apart(lambda: chat_form(request, without_oldest(items, left_out)))
            try:
                return len(await self._encode(exchange, request, messages, window)) <= most_tokens
            except ApiError as error:
                if error.code != "context_length_exceeded":
                    raise
                return False

        fewest, most = 0, 0 if await fits(0) else max(0, most_left_out(items))
        while fewest < most:
            middle = (fewest + most) // 2
            fewest, most = (fewest, middle) if await fits(middle) else (middle + 1, most)
        return without_oldest(items, fewest)

    async def _found(self, exchange: HttpExchange) -> dict[str, Any]:
        return await stored(self._state, "response", exchange.path_id(), exchange.kept)


def _check_combinations(request: schema.responses.ResponseRequest) -> None:
    """Raise ApiError for fields that are missing or contradict each other."""
    if all(given is None for given in (request.input, request.prompt, request.previous_response_id, request.conversation)):
        raise errors.missing("input")
    if request.background and request.store is False:
        raise ApiError("Background mode requires store to be true.", param="background", code="invalid_value")
    if request.stream_options is not None and not request.stream:
        raise errors.only_with("stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")


def _complete(response: Item, writer: ResponseWriter, generation: Generation) -> None:
    """Fill in what is known when the last token has come."""
    [choice] = generation.choices
    response["output"] = writer.finished_items()
    response["usage"] = response_usage(generation.usage())
    if (cut_by := _INCOMPLETE.get(choice.reply.finish_reason)) is not None:
        response["status"] = "incomplete"
        response["incomplete_details"] = {"reason": cut_by}
    else:
        response["status"] = "completed"
        response["completed_at"] = int(time.time())


def response_constraints(
    request: schema.responses.ResponseRequest, messages: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]
) -> ReplyConstraints:
    """Return the constraints of a response. Raises ApiError for an invalid JSON Schema and for an unknown tool.

    messages: all that the model sees, in chat's form; items: the same in the API's own form.
    """
    if request.compacts:
        return compacting(messages)
    tools = [tool for index, declared in enumerate(request.plain_tools) for tool in _tools(index, declared, items)]
    form = _answer_form(request)
    choice, forced = _tool_choice(plain(request.tool_choice), tools)
    if request.tool_choice == "required" and not request.tools:
        raise errors.only_with("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
    check_names(choice, tools)
    if choice.mode == "auto" and compacted_since_user(items):
        choice = ToolChoice("none")
    return ReplyConstraints(
        tools=tuple(tools),
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        history=chat_history(messages),
        json_schema=form.json_schema,
        grammar=form.grammar,
        form_field=form.field,
        instructions=instructions_of(messages),
        reasoning_tokens=thought_tokens(_effort(request, items), request.max_output_tokens),
        most_hosted_calls=request.max_tool_calls or 8,
        length_factor=LENGTH_FACTORS.get((request.text.verbosity if request.text else None) or "medium", 1.0),
        may_refuse=True,
        forced=forced,
    )


def _effort(request: schema.responses.ResponseRequest, items: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the effort of the last item that sets one, else of the request."""
    updates = [item.get("reasoning") or {} for item in items if item.get("type") == "configuration_update"]
    efforts = [update["effort"] for update in updates if update.get("effort")]
    return efforts[-1] if efforts else request.reasoning.effort if request.reasoning else None


def compacting(messages: Sequence[Mapping[str, Any]]) -> ReplyConstraints:
    """Return the constraints of a reply that sums a conversation up."""
    return ReplyConstraints(history=chat_history(messages), compacts=True)


def _tools(index: int, tool: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Return the callable tools of one declared tool. Raises ApiError for invalid parameters and grammars."""
    if tool["type"] == "custom":
        return [custom_tool(tool, f"tools[{index}]")]
    if tool["type"] != "function":
        return hosted_tools(tool, items)
    parameters = tool.get("parameters")
    where = f"tools[{index}].parameters"
    if parameters and (problem := schema_problem(parameters, where, tool.get("strict") is True)):
        raise errors.invalid_schema(f"function '{tool['name']}'", problem, where, "invalid_function_parameters")
    return [Tool("function", tool["name"], tool.get("description") or "", parameters, field=where)]


def _answer_form(request: schema.responses.ResponseRequest) -> AnswerForm:
    """Return the form of `text.format` or of vLLM's `structured_outputs`. Raises ApiError for an invalid JSON Schema."""
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return structured_form(request.structured_outputs)
    if form.type == "json_object":
        return AnswerForm("text.format", ANY_OBJECT)
    if problem := schema_problem(form.schema_, "text.format.schema", bool(form.strict)):
        raise errors.invalid_schema(f"response_format '{form.name}'", problem, "text.format.schema", "invalid_json_schema")
    return AnswerForm("text.format.schema", form.schema_)


def _tool_choice(choice: Any, tools: Sequence[Tool]) -> tuple[ToolChoice, bool]:
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            names = tuple(
                name for tool in choice.get("tools") or () for name in chosen(tool, tools) or (str(tool.get("name", "")),)
            )
            return ToolChoice(choice.get("mode", "auto"), names), False
        if choice.get("type") not in ("function", "custom"):
            forced = chosen(choice, tools)
            return (ToolChoice("auto"), False) if forced is None else (ToolChoice("required", forced), True)
    return tool_choice(choice)

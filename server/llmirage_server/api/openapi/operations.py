"""Every operation of the API: its body, its answer, its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from llmirage_shared.wire.schema import chat, completions, embeddings, messages, moderations, responses, sglang, tokenization

Style = Literal["json", "text", "list", "one_or_list"]


@dataclass(frozen=True, kw_only=True)
class ApiOperation:
    """One method of one path. answer None: the body is empty or plain text."""

    method: str
    path: str
    id: str
    summary: str
    body: type[BaseModel] | None = None
    body_required: bool = True
    answer: str | None = None  # the name of its schema in answers.yaml
    style: Style = "json"
    streams: bool = False
    query: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema by name
    errors: tuple[int, ...] = ()
    messages_api: bool = False  # errors have Anthropic's shape


_TEXT: dict[str, Any] = {"type": "string"}
_PAGE: dict[str, Any] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "after": _TEXT,
}
_INCLUDE: dict[str, Any] = {"include": _TEXT}
_GENERATES = (400, 404, 503)


def _get(path: str, id: str, summary: str, answer: str | None, **more: Any) -> ApiOperation:
    return ApiOperation(method="get", path=path, id=id, summary=summary, answer=answer, **more)


def _post(path: str, id: str, summary: str, body: type[BaseModel] | None, answer: str | None, **more: Any) -> ApiOperation:
    return ApiOperation(method="post", path=path, id=id, summary=summary, body=body, answer=answer, **more)


def _delete(path: str, id: str, summary: str, answer: str) -> ApiOperation:
    return ApiOperation(method="delete", path=path, id=id, summary=summary, answer=answer, errors=(404,))


_CHAT, _RESPONSES, _TALKS = "/v1/chat/completions", "/v1/responses", "/v1/conversations"
_ITEMS = _TALKS + "/{conversation_id}/items"

# Without /sleep and its kin: a client that tries all operations would be refused from then on.
OPERATIONS: tuple[ApiOperation, ...] = (
    _post(_CHAT, "createChatCompletion", "Create a chat completion", chat.ChatCompletionRequest, "ChatCompletion",
          streams=True, errors=_GENERATES),
    _get(_CHAT, "listChatCompletions", "List stored chat completions", "Page", errors=(400,),
         query={**_PAGE, "model": _TEXT}),
    _get(_CHAT + "/{completion_id}", "getChatCompletion", "Get a stored chat completion", "StoredCompletion",
         errors=(404,)),
    _post(_CHAT + "/{completion_id}", "updateChatCompletion", "Update the metadata of a stored chat completion",
          responses.ConversationUpdate, "StoredCompletion", errors=(400, 404)),
    _delete(_CHAT + "/{completion_id}", "deleteChatCompletion", "Delete a stored chat completion", "Deleted"),
    _get(_CHAT + "/{completion_id}/messages", "getChatCompletionMessages", "List the messages of a stored completion",
         "Page", errors=(400, 404), query=_PAGE),
    _post("/v1/completions", "createCompletion", "Create a text completion", completions.CompletionRequest,
          "TextCompletion", streams=True, errors=_GENERATES),
    _post(_RESPONSES, "createResponse", "Create a response", responses.ResponseRequest, "ResponseAnswer",
          streams=True, errors=_GENERATES),
    _post(_RESPONSES + "/input_tokens", "getInputTokens", "Count the tokens of a response's prompt",
          responses.InputFields, "InputTokens", errors=(400, 404)),
    _post(_RESPONSES + "/compact", "compactResponse", "Compact a conversation", responses.ResponseRequest,
          "CompactedResponse", errors=_GENERATES),
    _get(_RESPONSES + "/{response_id}", "getResponse", "Get a stored response", "ResponseAnswer",
         streams=True, errors=(400, 404),
         query={"stream": {"type": "boolean"}, "starting_after": {"type": "integer"}, **_INCLUDE}),
    _delete(_RESPONSES + "/{response_id}", "deleteResponse", "Delete a stored response", "Deleted"),
    _post(_RESPONSES + "/{response_id}/cancel", "cancelResponse", "Cancel a background response", None,
          "ResponseAnswer", errors=(400, 404)),
    _get(_RESPONSES + "/{response_id}/input_items", "listInputItems", "List the input items of a response", "Page",
         errors=(400, 404), query={**_PAGE, **_INCLUDE}),
    _post(_TALKS, "createConversation", "Create a conversation", responses.ConversationCreate,
          "ConversationAnswer", body_required=False, errors=(400,)),
    _get(_TALKS + "/{conversation_id}", "getConversation", "Get a conversation", "ConversationAnswer",
         errors=(404,)),
    _post(_TALKS + "/{conversation_id}", "updateConversation", "Update a conversation's metadata",
          responses.ConversationUpdate, "ConversationAnswer", errors=(400, 404)),
    _delete(_TALKS + "/{conversation_id}", "deleteConversation", "Delete a conversation", "Deleted"),
    _get(_ITEMS, "listConversationItems", "List the items of a conversation", "Page", errors=(400, 404),
         query={**_PAGE, **_INCLUDE}),
    _post(_ITEMS, "createConversationItems", "Add items to a conversation", responses.ItemsCreate, "Page",
          errors=(400, 404)),
    _get(_ITEMS + "/{item_id}", "getConversationItem", "Get an item of a conversation", "ItemAnswer",
         errors=(404,)),
    _delete(_ITEMS + "/{item_id}", "deleteConversationItem", "Delete an item of a conversation",
            "ConversationAnswer"),
    _post("/v1/messages", "createMessage", "Create a message, as Anthropic's API does", messages.MessagesRequest,
          "MessageAnswer", streams=True, errors=_GENERATES, messages_api=True),
    _post("/v1/messages/count_tokens", "countMessageTokens", "Count the tokens of a message's prompt", messages.CountRequest,
          "MessagesTokenCount", errors=(400, 404), messages_api=True),
    _post("/v1/embeddings", "createEmbedding", "Create embeddings", embeddings.EmbeddingRequest, "EmbeddingList",
          errors=(400, 404)),
    _post("/v1/moderations", "createModeration", "Classify texts as harmful or not", moderations.ModerationRequest,
          "Moderation", errors=(400, 404)),
    _get("/v1/models", "listModels", "List the served models", "ModelList"),
    _get("/v1/models/{model}", "retrieveModel", "Get a served model", "ModelCard", errors=(404,)),
    _get("/health", "health", "Check that the server is up", "Health"),
    _post("/tokenize", "tokenize", "vLLM: tokenize a prompt", tokenization.TokenizeRequest, "Tokenized",
          errors=(400, 404)),
    _post("/detokenize", "detokenize", "vLLM: detokenize ids", tokenization.DetokenizeRequest, "Detokenized",
          errors=(400, 404)),
    *(
        _post(path, name, "Rank documents by relevance", embeddings.RerankRequest, "RerankAnswer", errors=(400, 404))
        for path, name in (("/rerank", "rerank"), ("/v1/rerank", "rerankV1"), ("/v2/rerank", "rerankV2"))
    ),
    *(
        _post(path, name, "vLLM: score the similarity of texts", embeddings.ScoreRequest, "ScoreAnswer",
              errors=(400, 404))
        for path, name in (("/score", "score"), ("/v1/score", "scoreV1"))
    ),
    _get("/ping", "ping", "vLLM: check that the server is up", None),
    _post("/ping", "pingPost", "vLLM: check that the server is up", None, None),
    _get("/metrics", "metrics", "vLLM: get Prometheus metrics", None),
    _get("/version", "version", "vLLM: get the version of the server", "Version"),
    _get("/load", "load", "vLLM: count the requests in the cluster", "ServerLoad"),
    _get("/server_info", "serverInfo", "vLLM: get settings and instances", "ServerInfo"),
    _post("/reset_prefix_cache", "resetPrefixCache", "vLLM: drop the KV that no request uses", None, None),
    _post("/generate", "generate", "SGLang: continue texts", sglang.GenerateRequest, "Generated", streams=True,
          style="one_or_list", errors=_GENERATES),
    ApiOperation(method="put", path="/generate", id="generatePut", summary="SGLang: continue texts", streams=True,
              body=sglang.GenerateRequest, answer="Generated", style="one_or_list", errors=_GENERATES),
    _post("/abort_request", "abortRequest", "SGLang: cancel a request by its rid", sglang.AbortRequest, None, errors=(400,)),
    _get("/health_generate", "healthGenerate", "SGLang: check that the cluster generates a token", None, errors=(503,)),
    _get("/get_model_info", "getModelInfo", "SGLang: get the served model", "SglangModelInfo"),
    _get("/model_info", "modelInfo", "SGLang: get the served model", "SglangModelInfo"),
    _get("/get_server_info", "getServerInfo", "SGLang: get settings and instances", "ServerInfo"),
    _get("/get_load", "getLoad", "SGLang: get the load of each instance", "RankLoad", style="list"),
    _get("/flush_cache", "flushCache", "SGLang: drop all KV, if no request is in the cluster", None, style="text"),
    _post("/flush_cache", "flushCachePost", "SGLang: drop all KV, if no request is in the cluster", None, None,
          style="text"),
)  # fmt: skip

_SAID = [{"role": "user", "content": "Hello"}]
# A body for each path that takes a model, without the model.
EXAMPLES: Mapping[str, dict[str, Any]] = {
    _CHAT: {"messages": _SAID, "max_tokens": 20},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 20},
    _RESPONSES: {"input": "Hello", "max_output_tokens": 20},
    _RESPONSES + "/input_tokens": {"input": "Hello"},
    _RESPONSES + "/compact": {"input": "Hello", "max_output_tokens": 20},
    "/v1/messages": {"messages": _SAID, "max_tokens": 20},
    "/v1/messages/count_tokens": {"messages": _SAID},
    "/v1/embeddings": {"input": "Hello", "encoding_format": "float"},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [100, 200]},
    **{path: {"query": "Paris", "documents": ["A city", "A fruit"]} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    **{path: {"text_1": "Paris", "text_2": "A city"} for path in ("/score", "/v1/score")},
}

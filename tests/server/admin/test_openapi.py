"""The document says what is served: every route, every model, and answers as they are."""

import re
from functools import cache
from typing import Any

import jsonschema
import pytest
from starlette.routing import Mount, WebSocketRoute

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
UNLISTED = {"/sleep", "/wake_up", "/is_sleeping", "/openapi.json", "/docs", "/v1/messages{rest:path}"}  # the last is none
SAID = [{"role": "user", "content": "Hello"}]


@cache
def document() -> Any:
    """The document, which takes too long for each process that collects tests."""
    from llmirage_server.admin.openapi import openapi_document

    return openapi_document(MODEL)


def operations() -> Any:
    from llmirage_server.admin.openapi import OPERATIONS

    return OPERATIONS


def plain(path: str) -> str:
    return re.sub(r"{[^}]*}", "{}", path)


def test_every_route_is_an_operation_with_its_methods(make_api: Any) -> None:
    api = make_api(dialect="vllm")
    api.app.make_routes()
    served: dict[str, set[str]] = {}
    for route in api.app.router.routes:
        if route.path not in UNLISTED and not isinstance(route, WebSocketRoute | Mount):  # OpenAPI has no words for these
            served.setdefault(plain(route.path), set()).update(set(route.app.handlers) - {"HEAD"})
    told: dict[str, set[str]] = {}
    for operation in operations():
        told.setdefault(plain(operation.path), set()).add(operation.method.upper())
    assert told == served


def test_the_document_is_served_and_every_reference_leads_somewhere(api: Any) -> None:
    response = api.request("GET", "/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == document()
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document())))
    assert len(references) > 80
    known = {f"#/components/schemas/{name}" for name in document()["components"]["schemas"]}
    assert references <= known


def test_operation_ids_are_unique() -> None:
    ids = [operation.id for operation in operations()]
    assert len(set(ids)) == len(ids)


def check_answer(response: Any, method: str, path: str) -> None:
    told = document()["paths"][path][method]["responses"]
    answer = told.get(str(response.status_code), told["default"])
    schema = answer["content"][response.headers["content-type"].partition(";")[0]]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(response.json())


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": SAID, "tools": [FUNCTION], "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 3, "logprobs": 2, "echo": True}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 20}),
    ("/v1/responses", {"input": "Hello", "reasoning": {"effort": "low", "summary": "auto"}}),
    ("/v1/responses", {"input": 5}),
    ("/v1/responses/input_tokens", {"input": "Hello"}),
    ("/v1/responses/compact", {"input": "Hello"}),
    ("/v1/conversations", {"items": [{"role": "user", "content": "Hello"}]}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 3}),
    ("/v1/messages", {"messages": SAID}),
    ("/v1/messages/count_tokens", {"messages": SAID}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": ""}),
    ("/v1/moderations", {"input": "a", "model": "omni-moderation-latest"}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/detokenize", {"tokens": [1]}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "b"}]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/generate", {"text": "a"}),
    ("/generate", {"text": ["a", "b"]}),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_answers_are_what_the_document_says(api: Any, path: str, body: dict[str, Any]) -> None:
    check_answer(api.post(path, {"model": MODEL} | body), "post", path)


def test_what_is_asked_for_without_a_body(api: Any) -> None:
    for operation in operations():
        if operation.method == "get":
            response = api.request("GET", re.sub(r"{\w+}", "nothing", operation.path))
            if operation.answer is None and operation.style not in ("bytes", "lines"):
                kind = response.headers["content-type"].partition(";")[0]
                assert (response.status_code, kind) == (200, "text/plain"), operation.path
            else:
                check_answer(response, "get", operation.path)


def test_request_models_accept_what_the_examples_send() -> None:
    for path, body in CALLS:
        schema = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator({**schema, "components": document()["components"]})
        good = body not in ({"messages": []}, {"input": 5}, {"input": ""}, {"messages": SAID}) or "count" in path
        named = {} if path.startswith("/v1/conversations") else {"model": MODEL}
        assert validator.is_valid(named | body) is good, (path, body)


def test_fields_that_nobody_documents_are_not_in_the_document(make_api: Any) -> None:
    def accepted(document: Any, field: str) -> bool:
        schema = document["components"]["schemas"]["ChatCompletionRequest"]
        validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
        return validator.is_valid({"model": MODEL, "messages": SAID, field: 1})

    assert (accepted(document(), "banana"), accepted(document(), "vllm_xargs")) == (False, True)
    open_api = make_api(unknown_fields="ignore").request("GET", "/openapi.json").json()
    assert accepted(open_api, "banana")


def test_the_examples_work(api: Any, make_api: Any) -> None:
    from llmirage_server.admin.openapi import EXAMPLES

    for path in EXAMPLES:
        asked = make_api(dialect="vllm") if path.startswith("/inference") else api
        body = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        response = asked.post(path, body)
        assert response.status_code == 200, (path, response.text)
        check_answer(response, "post", path)

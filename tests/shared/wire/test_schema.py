"""The models of request bodies: imported at first use, closed where they must be."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from llmirage_shared.wire import schema
from llmirage_shared.wire.errors import ApiError

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_a_module_is_imported_at_its_first_use() -> None:
    program = (
        "import sys; from llmirage_shared.wire import schema; before = 'pydantic' in sys.modules;"
        "print(before, schema.chat.ChatCompletionRequest.__name__, 'pydantic' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["False", "ChatCompletionRequest", "True"]


def test_an_unknown_module_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no module 'chats'"):
        _ = schema.chats  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "undocumented"),
    [
        ({}, None),
        ({"chat_template": "x"}, None),  # vLLM's
        ({"mirror": None}, None),  # null counts as absent
        ({"mirror": 1, "mirrors": 2}, "mirror"),
        ({"stream_options": {"include_usage": True, "mirror": 1}}, "stream_options.mirror"),
        ({"response_format": {"type": "text", "mirror": 1}}, None),  # not a closed object
    ],
)
def test_the_first_undocumented_field_is_named(fields: dict[str, object], undocumented: str | None) -> None:
    assert schema.chat.ChatCompletionRequest.check(BODY | fields).undocumented_field() == undocumented


def test_each_api_refuses_undocumented_fields_in_its_own_words() -> None:
    with pytest.raises(ApiError, match=r"Unknown parameter: 'mirror'\.") as refused:
        schema.responses.InputFields.check({"mirror": 1}, documented_only=True)
    assert refused.value.code == "unknown_parameter"
    with pytest.raises(ApiError, match="mirror: Extra inputs are not permitted"):
        schema.messages.CountRequest.check(BODY | {"mirror": 1}, documented_only=True)
    assert schema.messages.CountRequest.check(BODY | {"mirror": 1}).model == "m"


MANY = 3000
CHAT, RESPONSE = {"model": "m", "messages": [{"role": "user", "content": "x"}]}, {"model": "m", "input": "x"}


@pytest.mark.parametrize(
    ("kind", "body", "most"),
    [
        (schema.responses.ResponseRequest, RESPONSE | {"input": [1] * MANY}, 50),
        (schema.responses.ResponseRequest, RESPONSE | {"input": [{"role": "user", "content": [1] * MANY}]}, 50),
        (schema.responses.ResponseRequest, RESPONSE | {"tools": [{}] * MANY}, 50),
        (schema.responses.ResponseRequest, RESPONSE | {"metadata": dict.fromkeys(map(str, range(MANY)), 1)}, 1),
        (schema.chat.ChatCompletionRequest, CHAT | {"messages": [{}] * MANY}, 50),
        (schema.chat.ChatCompletionRequest, CHAT | {"logit_bias": dict.fromkeys(map(str, range(MANY)), "x")}, 300),
        (schema.messages.MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [1] * MANY}, 50),
    ],
)
def test_wrong_items_make_few_errors(kind: Any, body: Any, most: int) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(body)
    assert raised.value.error_count() <= most


def test_a_large_object_is_kept_whole_and_in_order() -> None:
    biases = {str(number): number / MANY for number in range(MANY)}
    request = schema.chat.ChatCompletionRequest.check(CHAT | {"logit_bias": biases})
    assert list(request.logit_bias.items()) == list(biases.items())  # type: ignore[union-attr]


def test_the_error_of_an_object_with_too_many_items_tells_how_many() -> None:
    with pytest.raises(schema.base.ApiError, match="with at most 16 properties, but got an object with 17 properties"):
        schema.responses.ResponseRequest.check(RESPONSE | {"metadata": dict.fromkeys(map(str, range(17)), "x")})

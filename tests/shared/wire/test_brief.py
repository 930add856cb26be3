"""A body of very many wrong items makes few errors: each takes some microseconds, in which nothing else runs."""

from typing import Any

import pytest
from pydantic import ValidationError

from llmirage_shared.wire import schema

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

"""The official SDK against a server with keys and rate limits: it retries what it may, and says what it may not do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sdks import openai
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def limited_url() -> Iterator[str]:
    with serving("--ttft", "1", "--itl", "0", "--api-key", "sk-right", "--set", "rate_limit=240") as url:
        yield url


def test_keys(limited_url: str) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        openai.OpenAI(base_url=limited_url, api_key="sk-wrong", max_retries=0).models.list()
    assert wrong.value.code == "invalid_api_key"
    assert [model.id for model in openai.OpenAI(base_url=limited_url, api_key="sk-right", max_retries=0).models.list()] == [
        MODEL
    ]


def test_refused_requests_are_tried_again_until_they_are_served(limited_url: str) -> None:
    def ask(client: openai.OpenAI) -> str | None:
        return client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2).choices[0].message.content

    with openai.OpenAI(base_url=limited_url, api_key="sk-right", max_retries=0) as hasty:
        with pytest.raises(openai.RateLimitError) as refused:
            all(ask(hasty) for _ in range(2000))
        assert refused.value.code == "rate_limit_exceeded"
        assert float(refused.value.response.headers["retry-after-ms"]) > 0
        patient = hasty.with_options(max_retries=5)
        assert all(ask(patient) for _ in range(2))

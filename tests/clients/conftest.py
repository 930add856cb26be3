"""A server process for real client libraries, and a proxy before it that holds every answer against the OpenAPI document."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openapi_law import OpenApiLaw
from recorder import Recorder
from served import serving


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The /v1 URL of a server whose tokens are due at once."""
    with serving("--ttft", "1", "--itl", "0", "--max-model-len", "4000", "--set", "accept_models=served") as url:
        yield url


@pytest.fixture(scope="session")
def recorder(server_url: str) -> Iterator[Recorder]:
    recorder = Recorder(server_url)
    yield recorder
    recorder.close()


@pytest.fixture(scope="session")
def base_url(recorder: Recorder) -> str:
    """The same server through the recording proxy."""
    return recorder.url


@pytest.fixture(scope="module")
def sdk(base_url: str) -> Iterator[Any]:
    import openai  # not in each environment that these tests run in

    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def wait() -> Iterator[Callable[..., Any]]:
    """Runs coroutines, all of one test in the same event loop: clients keep their connections in it."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def law() -> OpenApiLaw:
    return OpenApiLaw()


@pytest.fixture(autouse=True)
def _every_answer_is_lawful(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test through the proxy: every JSON body and every event it received fits the OpenAPI document."""
    if "base_url" not in request.fixturenames:
        yield
        return
    law: OpenApiLaw = request.getfixturevalue("law")
    recorder: Recorder = request.getfixturevalue("recorder")
    yield
    problems = [
        problem
        for answer in recorder.take()
        if answer.status and answer.method not in ("HEAD", "OPTIONS")
        if "request-id" not in answer.headers  # Anthropic's, of which the document says nothing
        for problem in law.problems(
            answer.method, answer.path, answer.status, answer.headers.get("content-type", ""), answer.body, answer.whole
        )
    ]
    assert not problems, "\n".join(problems)

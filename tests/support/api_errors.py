"""Good bodies, and what an error response must be."""

from typing import Any

USER = {"role": "user", "content": "Hello"}
CHAT = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "messages": [USER], "max_tokens": 2}
TEXT = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "prompt": "Hello", "max_tokens": 2}


def assert_error(response: Any, status: int, param: str | None, code: str | None, message: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert message in error["message"]

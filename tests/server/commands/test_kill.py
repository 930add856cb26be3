"""kill -9 of a server under load: whatever it had answered is there when it has been started again."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
from served import started

STREAMS = 6
BODY = {"model": "any", "input": "Tell me something.", "max_output_tokens": 16, "store": True}


def ask_until_it_dies(url: str, client: int, answered: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
    """answered: each response that came whole; kept: each stored chat completion."""
    chat = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "store": True}
    with httpx.Client(base_url=url, timeout=10) as http:
        number = 0
        while True:
            number += 1
            try:
                response = http.post("/v1/responses", json=BODY | {"input": f"Question {number} of {client}"})
                answered.append(response.json())
                kept.append(http.post("/v1/chat/completions", json=chat).json())
            except (httpx.TransportError, ValueError):
                return


def test_what_was_answered_is_there_after_kill_9_and_a_response_in_progress_has_failed(tmp_path: Path) -> None:
    flags = ("--state", str(tmp_path / "state.db"), "--ttft", "1", "--itl", "0")
    answered: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    with started(*flags[:2], "--ttft", "1", "--itl", "5") as (process, url):
        clients = [threading.Thread(target=ask_until_it_dies, args=(url, n, answered, kept)) for n in range(STREAMS)]
        for client in clients:
            client.start()
        long = BODY | {"background": True, "max_output_tokens": 20_000, "ignore_eos": True}
        background = httpx.post(f"{url}/v1/responses", json=long).json()
        deadline = time.monotonic() + 30
        while len(kept) < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert httpx.get(f"{url}/v1/responses/{background['id']}").json()["status"] == "in_progress"
        process.kill()
        process.wait(10)
        for client in clients:
            client.join(20)
    assert len(answered) >= len(kept) >= 30
    with started(*flags) as (_, url), httpx.Client(base_url=url) as http:
        for response in answered:
            assert http.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]
        for completion in kept:
            assert http.get(f"/v1/chat/completions/{completion['id']}").json()["choices"] == completion["choices"]
        after = http.get(f"/v1/responses/{background['id']}").json()
        assert (after["status"], after["error"]["code"]) == ("failed", "server_error")
        assert http.post(f"/v1/responses/{background['id']}/cancel").status_code in (200, 400)

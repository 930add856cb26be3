"""The official openai package against clusters of pools over real HTTP: two models, prefill and decode apart, crashes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sdks import openai
from served import serving
from warm import llmirage

POOLS = """
pools:
  - {name: in, role: prefill, model: Qwen/Qwen3-8B, instances: 2}
  - {name: out, role: decode, model: Qwen/Qwen3-8B, instances: 1}
  - {name: moe, model: Qwen/Qwen3-30B-A3B, served_model_name: [moe, moe-again], instances: 1}
speed: max
"""

# Every instance takes a second for the first token, at twenty times the speed of life; the first one crashes meanwhile.
CRASH = """
instances: 2
router: round_robin
ttft: 1000
itl: 50
speed: 20
events:
  - {at_s: 1.5, action: crash, instance: 0}
"""


@contextmanager
def served(path: Path, text: str) -> Iterator[openai.OpenAI]:
    file = path / "cluster.yaml"
    file.write_text(text, encoding="utf-8")
    with serving("--cluster", str(file)) as url:
        yield openai.OpenAI(base_url=url, api_key="unused", max_retries=0)


EXACT = {"ignore_eos": True}


def ask(client: openai.OpenAI, model: str = "Qwen/Qwen3-30B-A3B", prompt: str = "Hello") -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=40, extra_body=EXACT
    )


def test_two_models_one_of_them_with_prefill_and_decode_apart(tmp_path: Path) -> None:
    with served(tmp_path, POOLS) as client:
        assert [model.id for model in client.models.list()] == ["Qwen/Qwen3-8B", "moe", "moe-again"]
        for model in ("Qwen/Qwen3-8B", "moe", "moe-again"):
            reply = ask(client, model, "Once upon a time. " * 300)
            assert reply.usage is not None
            assert (reply.model, reply.usage.completion_tokens) == (model, 40)
        again = ask(client, "moe", "Once upon a time. " * 300).usage
        assert again is not None
        assert again.prompt_tokens_details is not None
        assert again.prompt_tokens_details.cached_tokens == (again.prompt_tokens - 1) // 128 * 128  # one must be computed


def test_after_a_crash_with_reroute_nobody_notices_but_by_the_time_it_takes(tmp_path: Path) -> None:
    with served(tmp_path, CRASH) as client:
        for _ in range(2):  # one on each instance
            usage = ask(client).usage
            assert usage is not None
            assert usage.completion_tokens == 40


def test_with_fail_a_lost_request_is_a_503_and_a_lost_stream_an_error_after_what_it_had(tmp_path: Path) -> None:
    with served(tmp_path, CRASH + "on_crash: fail\n") as client:
        with pytest.raises(openai.InternalServerError) as refused:
            ask(client)
        assert refused.value.status_code == 503
        assert refused.value.code == "service_unavailable"
        assert ask(client).choices[0].finish_reason == "length"  # the other instance
    with served(tmp_path, CRASH + "on_crash: fail\n") as client:
        stream = client.chat.completions.create(
            model="Qwen/Qwen3-30B-A3B",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=40,
            stream=True,
            extra_body=EXACT,
        )
        received = []
        with pytest.raises(openai.APIError, match="The instance that served this request was lost") as lost:
            received.extend(chunk for chunk in stream if chunk.choices[0].delta.content)
        assert lost.value.code == "service_unavailable"


def test_a_run_counts_lost_requests_as_failed_and_the_others_as_ok(tmp_path: Path) -> None:
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": f"Question {i}"}], "max_tokens": 40} | EXACT
        for i in range(4)
    ]
    workload = tmp_path / "inputs.json"
    payloads = [{"session_id": str(i), "payloads": [body | {"stream": True}]} for i, body in enumerate(bodies)]
    workload.write_text(json.dumps({"data": payloads}), encoding="utf-8")
    with served(tmp_path, CRASH + "on_crash: fail\naccept_models: any\n") as client:
        command = [*llmirage(), "run", str(workload), "--url", str(client.base_url)]
        artifacts = tmp_path / "artifacts"
        done = subprocess.run(
            [*command, "--concurrency", "4", "--speed", "20", "--artifact-dir", str(artifacts)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert "2 requests ok, 2 failed" in done.stdout

"""Pools behind one API: which answers for which model, prefill and decode apart, and what clients see of a crash."""

import asyncio
import json
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig, EventConfig, PoolConfig
from llmirage_shared import virtual_time

LARGE, SMALL = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"
FIXED: dict[str, Any] = {"ttft_ms": 100.0, "itl_ms": 10.0}


class Answer(RawAnswer):
    """One response through raw ASGI."""

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def events(self) -> list[Any]:
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def chunks(self) -> list[str]:
        """The texts of a streamed completion, chunk by chunk."""
        choices = [choice for event in self.events if event != "[DONE]" for choice in event.get("choices", ())]
        return [choice["text"] for choice in choices if choice["text"]]


async def ask(app: LlmirageApp, path: str = "/v1/completions", **fields: Any) -> Answer:
    body = {"model": LARGE, "prompt": list(range(100)), "max_tokens": 20} | fields
    return await Answer().ask(app, path, body, "GET" if path.startswith("/v1/models") else "POST")


def run(app: LlmirageApp, **fields: Any) -> Answer:
    return virtual_time.run(ask(app, **fields))


def two_models(**settings: Any) -> LlmirageApp:
    pools = (
        PoolConfig(name="large", model=LARGE, instances=1, **FIXED),
        PoolConfig(name="small", model=SMALL, instances=2, max_model_len=1000, served_model_name=("tiny",), **FIXED),
    )
    return create_app(ClusterConfig(pools=pools, **settings))


def served_by(app: LlmirageApp) -> list[str]:
    """The pools that were asked for anything."""
    return sorted({s.pool for s in app.driver.cluster.snapshot() if s.prefix_query_tokens})


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        (LARGE, "large"),
        ("qwen3-30b-a3b", "large"),
        ("tiny", "small"),
        ("TINY", "small"),
        (SMALL, "small"),
        ("Qwen3-8B", "small"),
        ("meta-llama/Llama-3.1-8B-Instruct", "large"),  # of the catalogue, served by nobody: the first answers
    ],
)
def test_a_request_goes_to_the_pool_of_the_model_it_names(model: str, pool: str) -> None:
    app = two_models()
    answer = run(app, model=model)
    assert (answer.status, answer.json["model"]) == (200, model)
    assert served_by(app) == [pool]


def test_only_served_names_are_accepted_when_asked_so() -> None:
    app = two_models(accept_models="served")
    assert run(app, model="tiny").status == 200
    answer = run(app, model=SMALL)
    assert answer.status == 404
    assert f"`{LARGE}`, `tiny`" in answer.json["error"]["message"]


def test_models_lists_every_served_name_with_its_own_limit() -> None:
    app = two_models()
    cards = virtual_time.run(ask(app, "/v1/models")).json["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [(LARGE, 40_960), ("tiny", 1000)]


def test_a_request_must_fit_the_model_it_names() -> None:
    app = two_models()
    answer = run(app, model="tiny", max_tokens=901)
    assert answer.json["error"]["code"] == "context_length_exceeded"
    assert run(app, model="tiny", max_tokens=900).status == 200
    assert run(app, model=LARGE, max_tokens=901).status == 200


def disaggregated(**settings: Any) -> LlmirageApp:
    pools = (
        PoolConfig(name="in", role="prefill", model=SMALL, instances=2, **settings),
        PoolConfig(name="out", role="decode", model=SMALL, instances=1, **settings),
    )
    return create_app(ClusterConfig(pools=pools, accept_models="any", lenient=True))


def test_prefill_and_decode_apart_answer_like_one_server() -> None:
    app, plain = disaggregated(), create_app(ClusterConfig(model=SMALL, instances=1, accept_models="any"))
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    there, here = run(app, **fields), run(plain, **fields)
    assert there.chunks == here.chunks
    assert there.events[-2]["usage"] == here.events[-2]["usage"]
    assert app.driver.cluster.transfers.done == 1
    handoff_s = app.deployment.engine.handoff_ms * 1e-3
    assert there.times[0] > here.times[0] + handoff_s > here.times[0]  # the first token waits for the KV


async def test_the_next_turn_finds_its_history_on_the_prefill_side() -> None:
    app = disaggregated()
    cached = []
    prompt = list(range(2000))
    for _ in range(3):
        answer = (await ask(app, prompt=prompt)).json
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        prompt = prompt + list(range(10))
    first, second, third = cached
    assert first == 0
    assert (second, third) == (2000, 2010)


def crashing(on_crash: str, action: str = "crash", instances: int = 2, at_s: float = 0.155, **event: Any) -> LlmirageApp:
    """Fixed times, one prefill of 100 ms and a token every 10 ms; something happens to every instance but the last."""
    events = tuple(EventConfig(at_s=at_s, action=action, instance=i, **event) for i in range(max(1, instances - 1)))  # type: ignore[arg-type]
    return create_app(ClusterConfig(instances=instances, router="round_robin", on_crash=on_crash, events=events, **FIXED))  # type: ignore[arg-type]


def test_a_lost_stream_ends_with_an_error_event_after_the_tokens_it_had() -> None:
    app = crashing("fail")
    answer = run(app, stream=True, stream_options={"include_usage": True})
    whole = run(crashing("reroute", at_s=1000.0), stream=True).chunks
    assert answer.status == 200
    assert answer.chunks == whole[:6]  # at 100, 110, ... 150 ms
    assert answer.events[-1] == {
        "error": {
            "message": "The instance that served this request was lost.",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }
    assert not any(isinstance(event, dict) and event.get("usage") for event in answer.events)
    assert answer.times[-1] == pytest.approx(0.155)
    assert not app.service.responses.open


def test_a_lost_request_without_a_stream_is_a_503() -> None:
    answer = run(crashing("fail"))
    assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")


def test_of_two_choices_one_lost_ends_both_with_one_error() -> None:
    app = crashing("fail")
    answer = run(app, stream=True, n=2)
    assert [event for event in answer.events if "error" in event] == answer.events[-1:]
    assert all(s.running == s.waiting == s.kv_used_tokens == 0 for s in app.driver.cluster.snapshot())


@pytest.mark.parametrize("stream", [True, False])
def test_a_rerouted_request_is_answered_in_full(stream: bool) -> None:
    crashed, whole = (run(crashing("reroute", at_s=at_s), stream=stream) for at_s in (0.155, 1000.0))
    assert crashed.status == 200
    if stream:
        assert "".join(crashed.chunks) == "".join(whole.chunks)
        assert crashed.events[-1] == "[DONE]"
    else:
        assert crashed.json["choices"] == whole.json["choices"]
        assert crashed.json["usage"]["completion_tokens"] == 20
    assert crashed.times[-1] > whole.times[-1]


@pytest.mark.parametrize("stream", [True, False])
def test_with_nobody_left_a_request_is_refused_at_once(stream: bool) -> None:
    app = crashing("fail", instances=1)

    async def main() -> tuple[Answer, Answer, float]:
        lost = await ask(app, stream=stream)
        refused = await ask(app, stream=stream)
        return lost, refused, asyncio.get_running_loop().time()

    lost, refused, end_s = virtual_time.run(main())
    assert b"was lost" in lost.body
    assert (refused.status, refused.json["error"]["code"]) == (503, "service_unavailable")
    assert "none will start" in refused.json["error"]["message"]
    assert end_s == pytest.approx(0.155)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_waits_for_an_instance_that_will_come_back(stream: bool) -> None:
    app = crashing("fail", instances=1, restart_after_s=5.0)
    await ask(app, stream=stream)
    answer, end_s = await ask(app, stream=stream), asyncio.get_running_loop().time()
    assert answer.status == 200
    assert end_s == pytest.approx(5.155 + 0.1 + 19 * 0.01)


def speculating(**settings: Any) -> LlmirageApp:
    return create_app(ClusterConfig(model=SMALL, instances=1, accept_models="any", **settings))


def test_tokens_that_one_step_brings_leave_in_one_chunk_and_all_of_them_count() -> None:
    draft: dict[str, Any] = {"speculative_method": "draft_model", "draft_model": "Qwen/Qwen3-0.6B"}
    app = speculating(num_speculative_tokens=3, acceptance_rate=0.8, **draft)
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 200}
    fields["ignore_eos"] = True
    fast, plain = run(app, **fields), run(speculating(), **fields)
    assert "".join(fast.chunks) == "".join(plain.chunks)
    assert fast.events[-2]["usage"]["completion_tokens"] == 200
    assert len(fast.chunks) < 200 / 2 < len(plain.chunks)
    assert app.driver.pacing.summary().tokens == 200


def test_priorities_are_for_clusters_that_have_them() -> None:
    answer = run(speculating(), priority=1)
    assert (answer.status, answer.json["error"]["param"]) == (400, "priority")
    assert run(speculating(schedule_policy="priority"), priority=1).status == 200


def test_a_router_that_fails_is_an_error_of_the_server_in_its_own_words(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken_router.py").write_text("def pick(request, instances):\n    return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    app = create_app(ClusterConfig(router="broken_router:pick", **FIXED))
    answer = run(app)
    assert answer.status == 500
    assert "router 'broken_router:pick' returned 7" in answer.json["error"]["message"]
    assert "Traceback" not in caplog.text

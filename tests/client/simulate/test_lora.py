"""Turns that name LoRA adapters: with the engine alone as through the API."""

from __future__ import annotations

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.session import Session, TokenSpec, Turn, Workload

MODELS = ("a", "b", None, "a", "b", None)


def test_turns_run_under_the_adapter_that_is_their_model_in_both_ways() -> None:
    config = ClusterConfig(model="Qwen/Qwen3-8B", instances=1, engine="vllm", lora_modules=("a=/a", "b=/b"), max_loras=1)
    spec = TokenSpec(input_tokens=500, output_tokens=40)
    sessions = [
        Session(f"s{number}", (Turn(tokens=spec, model=model),) * 2, mode="tokens") for number, model in enumerate(MODELS)
    ]
    by_name = {session.id: session for session in sessions}
    workload = Workload("made", "made", by_name, tuple(by_name))
    options = RunOptions(concurrency=6)
    engine, api = (simulate(config, workload, options, via=via) for via in ("engine", "api"))  # type: ignore[arg-type]
    times = [
        {record.conversation_id: record.exchange.token_s for record in one.result.records if record.turn_index}
        for one in (engine, api)
    ]
    assert times[0] == times[1]
    first_s = {name: token_s[0] for name, token_s in times[0].items()}
    assert max(first_s["s0"], first_s["s2"]) < first_s["s1"]  # one slot: `b` waits for both turns of `a`, others do not

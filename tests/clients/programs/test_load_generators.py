"""Load generators of others against a server of fixed times: no error, and they read those times.

Skipped where they are not installed: `make test-clients`. Medians are compared, since other work of the machine moves means.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner
from programs import LoggedServer, if_installed, logged, program, ran

from llmirage_client.commands.workload_files import tokenizer

pytestmark = if_installed
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TTFT_MS, ITL_MS = 200, 10
OUTPUT_TOKENS = 40


@dataclass
class Read:
    """What a load generator reports: requests without error, the median of TTFT and of the time between tokens."""

    requests: int
    ttft_ms: float | None = None
    itl_ms: float | None = None


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("vocabulary") / "tokenizer"
    assert CliRunner().invoke(tokenizer, [str(folder)]).exit_code == 0
    return str(folder)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoggedServer]:
    with logged(tmp_path, "--ttft", str(TTFT_MS), "--itl", str(ITL_MS), "--dialect", "vllm") as server:
        yield server


def expect(read: Read, requests: int, server: LoggedServer, *, timed: bool, exact: bool = True) -> None:
    assert read.requests == requests
    assert server.problems() == []
    if timed:
        assert not exact or median(server.reply_tokens()) == OUTPUT_TOKENS  # a first request may be a trial
        assert read.ttft_ms == pytest.approx(TTFT_MS, rel=0.05)
        assert read.itl_ms == pytest.approx(ITL_MS, rel=0.01)


AIPERF = {
    "chat": ["--endpoint-type", "chat", "--streaming", "--request-count", "12"],
    "completions": ["--endpoint-type", "completions", "--streaming", "--request-count", "12"],
    "responses": ["--endpoint-type", "responses", "--streaming", "--request-count", "12"],
    "messages": ["--endpoint-type", "messages", "--streaming", "--request-count", "12"],
    "turns": ["--endpoint-type", "chat", "--streaming", "--conversation-num", "4", "--conversation-turn-mean", "3"],
    "embeddings": ["--endpoint-type", "embeddings", "--request-count", "12"],
    "rankings": ["--endpoint-type", "nim_rankings", "--request-count", "12"],
}


@pytest.mark.parametrize("mode", AIPERF)
def test_aiperf(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # with it, AIPerf 0.13 reads no folder
    generates = mode not in ("embeddings", "rankings")
    lengths = ["--osl", "40", "--extra-inputs", "ignore_eos:true"] if generates else []
    where = ["-u", server.url, "-m", MODEL, "--tokenizer", vocabulary, "--artifact-dir", str(tmp_path / "out")]
    command = [program("aiperf", "aiperf"), "profile", *where, "--ui", "none", "--concurrency", "4", "--isl", "200"]
    ran([*command, *lengths, *AIPERF[mode]], tmp_path)
    told = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text("utf-8"))
    assert "error_request_count" not in told
    read = Read(
        int(told["request_count"]["avg"]),
        *((told.get(name) or {}).get("p50") for name in ("time_to_first_token", "inter_token_latency")),
    )
    expect(read, 12, server, timed=generates)


GUIDELLM = {
    "chat": ("/v1/chat/completions", "prompt_tokens=200,output_tokens=40"),
    "completions": ("/v1/completions", "prompt_tokens=200,output_tokens=40"),
    "responses": ("/v1/responses", "prompt_tokens=200,output_tokens=40"),
    "turns": ("/v1/chat/completions", "prompt_tokens=100,output_tokens=40,turns=3"),
    "embeddings": ("/v1/embeddings", "prompt_tokens=200,output_tokens=1"),
}


@pytest.mark.parametrize("mode", GUIDELLM)
def test_guidellm(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    path, data = GUIDELLM[mode]
    given = {
        "--backend": f"kind=openai_http,target={server.url},request_format={path}",
        "--profile": "kind=concurrent,streams=4",
        "--constraint": "kind=max_requests,count=12",
        "--tokenizer": f"kind=hf_auto,model={vocabulary}",
        "--data": f"kind=synthetic_text,{data}",
        "--output": "kind=json,path=out.json",
    }
    ran(
        [program("guidellm", "guidellm"), "run", *(word for pair in given.items() for word in pair), "--disable-progress"],
        tmp_path,
    )
    metrics = json.loads((tmp_path / "out.json").read_text("utf-8"))["benchmarks"][0]["metrics"]
    assert metrics["request_totals"]["errored"] == 0
    times = (metrics[name]["successful"]["median"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    expect(Read(metrics["request_totals"]["successful"], *times), 12, server, timed=mode != "embeddings")


EXACT = """--extra-args {"ignore_eos":true}"""
RANDOM = f"--dataset random --min-prompt-length 200 --max-prompt-length 200 --number 12 --stream --max-tokens 40 {EXACT}"
EVALSCOPE = {
    "chat": ("openai", "/v1/chat/completions", RANDOM),
    "completions": ("openai", "/v1/completions", RANDOM),
    "responses": ("openai_responses", "/v1/responses", RANDOM),
    "turns": (
        "openai",
        "/v1/chat/completions",
        "--dataset random_multi_turn --multi-turn --min-turns 3 --max-turns 3 --number 4 --min-prompt-length 100"
        f" --max-prompt-length 100 --max-tokens 40 --stream {EXACT}",
    ),
    "embeddings": (
        "openai_embedding",
        "/v1/embeddings",
        "--dataset random_embedding --min-prompt-length 100 --max-prompt-length 100 --number 12",
    ),
}


@pytest.mark.parametrize("mode", EVALSCOPE)
def test_evalscope(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    api, path, flags = EVALSCOPE[mode]
    command = [program("evalscope", "evalscope"), "perf", "--url", server.url + path, "--api", api, "--model", MODEL]
    ran([*command, "--tokenizer-path", vocabulary, "--outputs-dir", "out", "--parallel", "4", *flags.split()], tmp_path)
    [summary] = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "out").glob("**/benchmark_summary.json")]
    [percentiles] = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "out").glob("**/benchmark_percentile.json")]
    assert summary["Failed Requests"] == 0
    half: dict[str, Any] = next(row for row in percentiles if row["Percentiles"] in ("50%", "50"))
    read = Read(summary["Success Requests"], half.get("TTFT (ms)"), half.get("TPOT (ms)"))
    expect(read, 12, server, timed=mode != "embeddings")


LENGTHS = "{min: 200, max: 200, mean: 200, std_dev: 0, total_count: 12}"
ASKED = "{min: 40, max: 40, mean: 40, std_dev: 0, total_count: 12}"
STEADY = "load: {type: constant, stages: [{rate: 4, duration: 3}], num_workers: 1}\n"
GROUPS = "num_groups: 3, num_prompts_per_group: 4, system_prompt_len: 100, question_len: 50, output_len: 40"
AGENTIC = (
    "load: {type: trace_session_replay, stages: [{concurrent_sessions: 2, num_sessions: 4}], num_workers: 1}\n"
    "data: {type: synthetic_agentic, synthetic_agentic: {num_sessions: 4, turns_per_session: {type: fixed, mean: 2},"
    " input_tokens_per_turn: {type: fixed, mean: 200}, output_tokens_per_turn: {type: fixed, mean: 40},"
    " fanout_probability: 0.5, tool_call_latency_sec: {type: fixed, mean: 0.1}, max_events_per_session: 24,"
    " user_think_time_sec: {type: fixed, mean: 0.2}, parallel_tool_calls_per_step: {type: fixed, mean: 2}}}\n"
)
INFERENCE_PERF = {
    "chat": ("chat", f"{STEADY}data: {{type: shared_prefix, shared_prefix: {{{GROUPS}}}}}\n"),
    "turns": ("chat", f"{STEADY}data: {{type: shared_prefix, shared_prefix: {{{GROUPS}, enable_multi_turn_chat: true}}}}\n"),
    "completions": (
        "completion",
        f"{STEADY}data: {{type: random, input_distribution: {LENGTHS}, output_distribution: {ASKED}}}\n",
    ),
    "agentic chat": ("chat", AGENTIC),
    "agentic messages": ("anthropic_messages", AGENTIC),
}


@pytest.mark.parametrize("mode", INFERENCE_PERF)
def test_inference_perf(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    api, load = INFERENCE_PERF[mode]
    (tmp_path / "config.yaml").write_text(
        f"api: {{type: {api}, streaming: true}}\n"
        f"server: {{type: vllm, model_name: {MODEL}, base_url: '{server.url}', ignore_eos: true}}\n"
        f"tokenizer: {{pretrained_model_name_or_path: '{vocabulary}'}}\n"
        "report: {request_lifecycle: {summary: true, per_stage: true, per_request: true}}\n"
        f"storage: {{local_storage: {{path: out}}}}\n{load}",
        "utf-8",
    )
    ran([program("inference-perf", "inference-perf"), "-c", "config.yaml"], tmp_path)
    told = json.loads((tmp_path / "out/summary_lifecycle_metrics.json").read_text("utf-8"))
    assert told["failures"]["count"] == 0
    times = [told["successes"]["latency"].get(name) for name in ("time_to_first_token", "time_per_output_token")]
    read = Read(told["successes"]["count"], *(time and time["median"] * 1000 for time in times))
    agentic = mode.startswith("agentic")
    expect(read, read.requests if agentic else 12, server, timed=not agentic or None not in times, exact=not agentic)


SGLANG = {
    "chat": ("sglang-oai-chat", "--dataset-name random-ids"),
    "completions": ("sglang-oai", "--dataset-name random-ids"),
    "native": ("sglang", "--dataset-name random-ids"),
    "turns": (
        "sglang-oai-chat",
        "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 2 --gsp-system-prompt-len 100"
        " --gsp-question-len 40 --gsp-output-len 40 --gsp-num-turns 3",
    ),
    "embeddings": ("sglang-embedding", "--dataset-name random-ids"),
}


@pytest.mark.parametrize("mode", SGLANG)
def test_sglang_bench_serving(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    backend, data = SGLANG[mode]
    lengths = ["--random-input-len", "200", "--random-output-len", "40", "--random-range-ratio", "1", "--num-prompts", "12"]
    command = [program("sglang", "python"), "-m", "sglang.bench_serving", "--backend", backend, "--base-url", server.url]
    common = ["--model", MODEL, "--tokenizer", vocabulary, "--output-file", "out.jsonl", "--max-concurrency", "4"]
    ran([*command, *common, *data.split(), *([] if mode == "turns" else lengths)], tmp_path, HF_HUB_OFFLINE="1")
    told = json.loads((tmp_path / "out.jsonl").read_text("utf-8").splitlines()[-1])
    expect(Read(told["completed"], told["median_ttft_ms"], told["median_tpot_ms"]), 12, server, timed=mode != "embeddings")


TASKS = {
    "generate": "output_type: generate_until\ndoc_to_target: '{{a}}'\n"
    'generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 20}\n'
    "metric_list: [{metric: exact_match}]\n",
    "choices": "output_type: multiple_choice\ndoc_to_choice: '{{c}}'\ndoc_to_target: l\nmetric_list: [{metric: acc}]\n",
}
QUESTIONS = [
    {"q": "How far is the moon?", "a": "Far", "c": ["Near", "Far"], "l": 1},
    {"q": "Which city lies on the Seine?", "a": "Paris", "c": ["Rome", "Paris"], "l": 1},
]


@pytest.mark.parametrize(
    ("api", "path", "tasks"),
    [
        ("local-completions", "/v1/completions", ["generate", "choices"]),
        ("local-chat-completions", "/v1/chat/completions", ["generate"]),
    ],
)
def test_lm_eval(api: str, path: str, tasks: list[str], server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), "utf-8")
    for name, rest in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/questions.jsonl}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(f"{head}test_split: test\ndoc_to_text: '{{{{q}}}}'\n{rest}", "utf-8")
    model = f"model={MODEL},base_url={server.url}{path},tokenizer={vocabulary},num_concurrent=2"
    chat = ["--apply_chat_template"] if "chat" in api else []
    given = ["--model", api, "--model_args", model, "--include_path", str(tmp_path), "--tasks", ",".join(tasks), *chat]
    told = ran([program("lm-eval", "lm_eval"), *given], tmp_path, HF_HUB_OFFLINE="1")
    for task in tasks:
        assert re.search(rf"\|\s*{task}\s*\|", told), told[-2000:]
    assert server.problems("/tokenizer_info") == []  # which it asks for first, and does without
    assert server.requests(path) >= len(QUESTIONS)


GENAI_BENCH = {
    "chat": ("text-to-text", ["--traffic-scenario", "D(200,40)"]),
    "embeddings": ("text-to-embeddings", ["--traffic-scenario", "E(100)", "--batch-size", "1"]),
}


@pytest.mark.parametrize("mode", GENAI_BENCH)
def test_genai_bench(mode: str, server: LoggedServer, vocabulary: str, tmp_path: Path) -> None:
    task, traffic = GENAI_BENCH[mode]
    where = ["--api-backend", "vllm", "--api-base", server.url, "--api-key", "none", "--api-model-name", MODEL]
    shape = ["--model-tokenizer", vocabulary, "--task", task, "--num-concurrency", "2", "--max-time-per-run", "1"]
    named = ["--server-engine", "vLLM", "--server-gpu-type", "H100", "--server-version", "none", "--server-gpu-count", "1"]
    command = [program("genai-bench", "genai-bench"), "benchmark", *where, *shape, *named, *traffic]
    ran([*command, "--max-requests-per-run", "12", "--experiment-base-dir", "out"], tmp_path)
    [told] = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "out").glob("*/[DE]*.json")]
    figures = told["aggregated_metrics"]
    assert figures["num_error_requests"] == 0
    assert figures["num_completed_requests"] >= 12
    assert server.problems() == []
    assert mode == "embeddings" or median(server.reply_tokens()) == OUTPUT_TOKENS


LOCUST = """
from locust import HttpUser, task

class User(HttpUser):
    @task
    def chat(self):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True}
        self.client.post("/v1/chat/completions", json=body)
"""


def test_locust(server: LoggedServer, tmp_path: Path) -> None:
    (tmp_path / "locustfile.py").write_text(LOCUST, "utf-8")
    run_time = ["--run-time", "12s"]  # from the start of the process, whose imports take seconds
    flags = ["--headless", "--users", "3", "--spawn-rate", "3", *run_time, "--host", server.url, "--only-summary"]
    ran([program("locust", "locust"), *flags, "-f", "locustfile.py", "--csv", "out"], tmp_path)
    total = (tmp_path / "out_stats.csv").read_text("utf-8").splitlines()[-1].split(",")
    assert int(total[2]) >= 3  # one of each user, however slow the machine
    assert int(total[3]) == 0
    assert server.problems() == []


def test_promptfoo(server: LoggedServer, tmp_path: Path) -> None:
    config = {
        "prompts": ["Say something about {{topic}}."],
        "providers": [
            {"id": f"openai:{api}:gpt-4o", "config": {"apiBaseUrl": f"{server.url}/v1"}} for api in ("chat", "responses")
        ],
        "tests": [{"vars": {"topic": "rain"}, "assert": [{"type": "javascript", "value": "output.length > 5"}]}],
    }
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    command = [program("promptfoo", "promptfoo"), "eval", "-c", "config.json", "--no-cache", "-o", "out.json"]
    environment = {"OPENAI_API_KEY": "none", "PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
    ran(command, tmp_path, PROMPTFOO_CONFIG_DIR=str(tmp_path), **environment)
    told = json.loads((tmp_path / "out.json").read_text("utf-8"))["results"]["stats"]
    assert (told["successes"], told["failures"], told["errors"]) == (2, 0, 0)
    assert server.problems() == []

"""What `llmirage run` finds out before its load starts, and loads that need no file, against the server itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, summary_of
from json_endpoint import JsonEndpoint, JsonHandler, completion
from workload_files import write

LOAD = ("--isl", 40, "--osl", 3, "--requests", 4, "--random-seed", 1)


class Gateway(JsonHandler):
    """models: names of the list, None: there is none; owner: of each; info: what it says of itself.

    status, message: of every error; 200: each request succeeds.
    """

    models: list[str] | None = None
    owner = "somebody"
    info: Any = None
    metrics = ""
    status = 200
    message = ""
    paths: list[str]

    def do_GET(self) -> None:
        if "server_info" in self.path:
            self.paths.append(self.path)
            self.answer(200 if self.info is not None else 404, self.info)
        elif self.path == "/metrics":
            self.paths.append(self.path)
            self.answer_text(self.metrics)
        elif self.models is None:
            self.answer(404, {"error": {"message": "no such path"}})
        else:
            self.answer(200, {"data": [{"id": name, "owned_by": self.owner} for name in self.models]})

    def do_POST(self) -> None:
        self.paths.append(str(self.body()["messages"][0]["content"]))
        if self.status != 200:
            self.answer(self.status, {"error": {"message": self.message}})
            return
        self.answer(200, completion("yes", 40, 3))


@contextlib.contextmanager
def gateway(**known: Any) -> Iterator[tuple[str, list[str]]]:
    """The URL, and the first messages of the requests that came."""
    prompts: list[str] = []
    with JsonEndpoint(type("OneGateway", (Gateway,), {**known, "paths": prompts})).started() as server:
        yield server.url, prompts


def ran(tmp_path: Path, url: str, *words: object, status: int = 0) -> str:
    """Run a load; return what was printed."""
    return invoke("run", "--url", url, "--artifact-dir", tmp_path / "out", *words, status=status).output


def test_a_dead_endpoint_is_told_in_one_line_before_anything_is_written(tmp_path: Path) -> None:
    result = ran(tmp_path, "127.0.0.1:9", *LOAD, "--model", "m", status=2)
    assert result == "http://127.0.0.1:9/v1: nothing listens at 127.0.0.1:9 (--set preflight=false skips this request)\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"models": ["a", "b"], "status": 404, "message": "no model m"}, "HTTP 404 for model m: no model m; it serves a, b"),
        ({"models": ["a"], "status": 400, "message": "Invalid model name m"}, "HTTP 400 for model m: Invalid model name m"),
        ({"models": None, "status": 404, "message": "no such path"}, "HTTP 404 for model m: no such path"),
        ({"models": None, "status": 401, "message": "bad key"}, "the key is refused, HTTP 401: bad key; --api-key sets it"),
    ],
)
def test_a_wrong_model_path_or_key_is_told_in_one_line(tmp_path: Path, known: dict[str, Any], said: str) -> None:
    with gateway(**known) as (url, prompts):
        result = ran(tmp_path, url, *LOAD, "--model", "m", status=2)
    assert said in result
    assert result.count("\n") == 1
    assert prompts == ["Hello"]


@pytest.mark.parametrize(
    "known",
    [
        {"models": ["m"]},  # in the list: no request is sent
        {"models": ["other"]},  # an alias that only a request shows
        {"models": None},  # a gateway without a list
        {"models": None, "status": 429, "message": "slow down"},  # the load itself will tell
        {"models": None, "status": 400, "message": "max_completion_tokens is too small"},
    ],
)
def test_what_may_well_work_is_not_refused(tmp_path: Path, known: dict[str, Any]) -> None:
    with gateway(**known) as (url, prompts):
        ran(tmp_path, url, *LOAD, "--model", "m", "--no-streaming", status=(1 if "status" in known else 0))
    assert prompts.count("Hello") == (0 if known["models"] == ["m"] else 1)
    assert len(prompts) - prompts.count("Hello") == 4


def test_no_preflight_asks_nothing(tmp_path: Path) -> None:
    with gateway(models=None) as (url, prompts):
        ran(tmp_path, url, *LOAD, "--model", "m", "--no-streaming", "--set", "preflight=false")
    assert len(prompts) == 4
    assert "Hello" not in prompts


def test_a_sweep_asks_once(tmp_path: Path) -> None:
    with gateway(models=None) as (url, prompts):
        ran(tmp_path, url, *LOAD, "--model", "m", "--no-streaming", "--concurrency", "1,2")
    assert prompts.count("Hello") == 1


SGLANG = {"model_path": "m", "tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "ep_size": 8, "quantization": "fp8"}
POOL = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "weights": "fp8", "tensor_parallel_size": 2, "instances": 3}


@pytest.mark.parametrize(
    ("owner", "info", "asked", "deployment"),
    [
        ("llmirage", {"deployment": [POOL]}, ["/server_info"], [POOL]),
        (
            "sglang",
            SGLANG,
            ["/get_server_info"],
            [
                {
                    "engine": "sglang",
                    "model": "m",
                    "tensor_parallel_size": 1,
                    "expert_parallel_size": 8,
                    "weights": "fp8",
                    "data_parallel_size": 8,
                }
            ],
        ),
        ("llmirage", {}, ["/server_info"], None),  # an older server
        ("llmirage", ["?"], ["/server_info"], None),
        ("openai", {"deployment": [POOL]}, [], None),  # a gateway: nothing more is asked
    ],
)
def test_what_the_server_runs_is_kept(
    tmp_path: Path, owner: str, info: Any, asked: list[str], deployment: list[dict[str, Any]] | None
) -> None:
    with gateway(models=["m"], owner=owner, info=info) as (url, paths):
        ran(tmp_path, url, *LOAD, "--model", "m", "--no-streaming", "--concurrency", "1,2")
    assert [path for path in paths if path.startswith("/")] == asked
    summaries = [summary_of(path.parent) for path in tmp_path.rglob("profile_export_aiperf.json")]
    assert [summary["llmirage"].get("deployment") for summary in summaries] == [deployment] * 2


METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0",num_gpu_blocks="2048"} 1.0
"""
CONFIG = {
    "model_config": {"model": "meta-llama/Llama-3.1-8B-Instruct", "quantization": "fp8", "max_model_len": 4096},
    "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1},
    "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "lora_config": None,
}
TEXT = (
    "model='meta-llama/Llama-3.1-8B-Instruct', tokenizer='x', dtype=torch.bfloat16, tensor_parallel_size=2, "
    "pipeline_parallel_size=1, data_parallel_size=1, quantization=fp8, kv_cache_dtype=auto, enable_prefix_caching=True"
)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (None, {}),  # as in production, where /server_info is not served
        ({"vllm_config": CONFIG}, {"tensor_parallel_size": 2, "weights": "fp8", "max_num_seqs": 64, "max_model_len": 4096}),
        ({"vllm_config": TEXT}, {"tensor_parallel_size": 2, "weights": "fp8"}),
    ],
)
def test_vllm_is_asked_for_what_it_tells(tmp_path: Path, info: Any, told: dict[str, Any]) -> None:
    with gateway(models=["m"], owner="vllm", info=info, metrics=METRICS) as (url, paths):
        ran(tmp_path, url, *LOAD, "--model", "m", "--no-streaming")
    assert [path for path in paths if path.startswith("/")] == ["/server_info?config_format=json", "/metrics"]
    summary = summary_of(tmp_path / "out")
    [pool] = summary["llmirage"]["deployment"]
    of_metrics = {"engine": "vllm", "model": "m", "block_size": 16, "num_gpu_blocks_override": 2048}
    assert pool.items() >= (of_metrics | told).items()


def test_equal_instances_of_two_servers_are_one_pool(tmp_path: Path) -> None:
    known = {"models": ["m"], "owner": "llmirage", "info": {"deployment": [POOL]}}
    with gateway(**known) as (one, _), gateway(**known) as (two, _):
        ran(tmp_path, f"{one},{two}", *LOAD, "--model", "m", "--no-streaming")
    summary = summary_of(tmp_path / "out")
    assert summary["llmirage"]["deployment"] == [POOL | {"instances": 6}]


def test_lengths_in_aiperfs_words(tmp_path: Path) -> None:
    words = ("--synthetic-input-tokens-mean", 50, "--output-tokens-mean", 3, "--request-count", 6, "--session-turns-mean", 2)
    with gateway(models=["m"]) as (url, prompts):
        ran(tmp_path, url, *words, "--synthetic-input-tokens-stddev", 5, "--model", "m", "--no-streaming")
    assert len(prompts) == 6
    assert len(set(prompts)) == 3  # of three sessions, each of which sends its first message twice
    assert len({len(prompt.split()) for prompt in prompts}) > 1  # as long as the deviation has them


def test_a_shared_prefix_is_sent_before_every_prompt(tmp_path: Path) -> None:
    words = ("--isl", 40, "--osl", 3, "--num-conversations", 5, "--shared-prefix", 100, "--endpoint-type", "chat")
    with gateway(models=["m"]) as (url, prompts):
        ran(tmp_path, url, *words, "--model", "m", "--no-streaming")
    assert len(set(prompts)) == 5
    halves = {prompt[: len(prompt) // 2] for prompt in prompts}
    assert len({half[:150] for half in halves}) == 1


def test_a_file_under_aiperfs_name_for_it(tmp_path: Path) -> None:
    file = write(tmp_path, {"text": "one"})
    with gateway(models=["m"]) as (url, prompts):
        words = ("--input-file", file, "--model", "m", "--no-streaming")
        ran(tmp_path, url, *words)
        both = ran(tmp_path, url, file, *words, "--overwrite", status=2)
        neither = ran(tmp_path, url, "--model", "m", "--overwrite", status=2)
    assert prompts == ["one"]
    assert "give WORKLOAD or --input-file, not both" in both
    assert "give a workload (a file, bundled:NAME or a preset), or --isl and --osl" in neither

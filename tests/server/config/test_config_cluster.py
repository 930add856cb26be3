"""Configuration: defaults, cluster files, flags, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmirage_server.app import create_app, load_text_tools
from llmirage_server.cluster.limits import StreamInterval
from llmirage_server.commands.serve import serve
from llmirage_server.config import ALIASES, SETTINGS, ClusterConfig, ConfigError
from llmirage_server.config.assembly import front_end_of
from llmirage_server.config.file import make_config, read_cluster_file
from llmirage_server.config.planning import ServedPool, plan
from llmirage_shared import tokenizer_loader
from llmirage_shared.prompt_encoder import ChatTemplateError


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_default_cluster_is_two_h100_with_a_mixture_of_experts() -> None:
    config = ClusterConfig()
    assert (config.model, config.gpu, config.instances, config.weights) == (
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "h100_sxm",
        2,
        "fp8",
    )
    app = create_app(config)
    assert app.deployment.gpus == 1
    assert app.max_model_len == 262_144  # agents ask for answers of up to 64,000 tokens
    assert app.limits.kv_tokens == app.deployment.memory.kv_tokens > 100_000


def test_a_file_sets_fields_by_name_alias_or_with_dashes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "model: Qwen/Qwen3-8B\ntp: 2\nmax-num-seqs: 64\nspeed: max\nitl: 10\n"
        "enable_prefix_caching: false\nserved_model_name: a\n",
    )
    assert read_cluster_file(path) == {
        "model": "Qwen/Qwen3-8B",
        "tensor_parallel_size": 2,
        "max_num_seqs": 64,
        "speed": math.inf,
        "itl_ms": 10.0,
        "enable_prefix_caching": False,
        "served_model_name": ("a",),
    }


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "instances: 4\nseed: 7\n")
    config = make_config(path, {"instances": 3, "seed": None, "served_model_name": ()})
    assert (config.instances, config.seed) == (3, 7)


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert make_config(write(tmp_path, "# nothing\n"), {}) == ClusterConfig()


def test_all_problems_of_a_file_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "modle: x\ninstances: two\ngpu: h100_sxm\nrouter: roundrobin\nmax_num_seqs: 0\n"
        "seed: 1\nSeed: 2\nfrobnicate: 1\nitl: .nan\n",
    )
    with pytest.raises(ConfigError) as error:
        read_cluster_file(path)
    problems = error.value.problems
    assert problems[0] == f"{path}:1: modle: unknown key (did you mean 'model'?)"
    assert problems[1] == f"{path}:2: instances: must be a whole number, not 'two'"
    assert problems[2].startswith(
        f"{path}:4: router: must be one of round_robin, random, least_loaded, power_of_two, session, prefix, kv_aware, "
    )
    assert problems[2].endswith("(did you mean 'round_robin'?)")
    assert problems[3] == f"{path}:5: max_num_seqs: must be at least 1, not 0"
    assert problems[4] == f"{path}:7: Seed: already set in line 6"
    assert problems[5].startswith(f"{path}:8: frobnicate: unknown key; known: model, gpu, instances")
    assert problems[6].startswith(f"{path}:9: itl: must be at least 0, not nan")
    assert len(problems) == 7


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("- a\n- b\n", 1, "a cluster file is a list of `key: value` lines"),
        ("a: b\nc: [1\n", 3, "not valid YAML"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("model: !!python/name:os.system\n", 1, "not valid YAML"),
        ("instances: true\n", 1, "must be a whole number, not True"),
        ("seed: 1\nmodel: 2024-99-99\n", 2, "not valid YAML: month must be in 1..12"),
        ("speed: fast\n", 1, "must be above 0, or max, not 'fast'"),
        ("served_model_name: [1]\n", 1, "must be a name or a list of them"),
        ("model:\n", 1, "must be a text, not None"),
        ("? [1, 2]\n: x\n", 1, "unknown key"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, part: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_cluster_file(path)
    [problem] = error.value.problems
    assert problem.startswith(f"{path}:{line}: ")
    assert part in problem


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_cluster_file(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"model: \xff\n")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8 text"):
        read_cluster_file(str(tmp_path / "latin.yaml"))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"instances": 0}, "instances must be at least 1"),
        ({"instances": 10_001}, "instances must be at least 1 and at most 10,000, not 10001"),
        ({"speed": 0.0}, "speed must be above 0"),
        ({"speed": math.nan}, "speed must be above 0"),
        ({"ttft_ms": -1.0}, "ttft_ms must be at least 0, not -1"),
        ({"itl_ms": math.inf}, "itl_ms must be at least 0, not inf"),
        ({"gpu_memory_utilization": 1.1}, "at most 1"),
        ({"router": "magic"}, "router must be one of round_robin"),
        ({"replies": "rhyme"}, "replies must be one of prose, echo"),
        ({"served_model_name": ("",)}, "must not be empty"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part.replace("(", r"\(")):
        ClusterConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model": "Qwen/Qwen3-235B-A22B"}, ["does not fit", "GiB"]),
        ({"tensor_parallel_size": 3}, ["3", "32"]),
        ({"gpu": "h1000"}, ["gpu: unknown GPU", "h100_sxm"]),
        ({"model": "Qwen3-30B-A3"}, ["model: unknown model", "Qwen/Qwen3-30B-A3B"]),
        ({"weights": "int3"}, ["int3", "bf16"]),
        ({"max_model_len": 1_000_000}, ["1000000", "262144"]),
        ({"max_model_len": 40_000, "gpu_memory_utilization": 0.42}, ["room for", "KV cache"]),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 256}, ["max_num_batched_tokens 16", "max_num_seqs 256"]),
    ],
)
def test_a_cluster_that_cannot_work_is_refused_with_the_arithmetic(settings: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        create_app(ClusterConfig(**settings))
    for part in parts:
        assert part in str(error.value)


def test_the_longest_request_is_what_memory_allows_when_that_is_less() -> None:
    app = create_app(ClusterConfig(gpu_memory_utilization=0.42))
    assert app.max_model_len == app.limits.max_request_tokens < 40_960


def test_every_setting_is_a_flag_and_every_alias_means_one() -> None:
    flags = {param.name for param in serve.params}
    assert set(SETTINGS) <= flags
    assert set(ALIASES.values()) <= set(SETTINGS)
    assert not set(ALIASES) & set(SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--router", "round_robbin"], "or module:function; not 'round_robbin' (did you mean 'round_robin'?)"),
        (["--replies", "rhyme"], "must be one of prose, echo, or module:function; not 'rhyme'"),
        (["--speed", "fast"], "must be above 0, or max, not 'fast'"),
        (["--speed", "-1"], "must be above 0, or max, not -1"),
        (["--instances", "two"], "must be a whole number, not 'two'"),
        (["--instances", "0"], "instances must be at least 1"),
        (["--set", "class_priorities=chat"], "is not CLASS:PRIORITY,..., such as"),
        (["--set", "objective_priorities=chat"], "is not OBJECTIVE:PRIORITY,..., such as"),
        (["--set", "objective_priorities=a:1,b:2,a:1"], "'a' has several priorities in"),
        (["--gpu", "h1000", "--port", "0"], "gpu: unknown GPU 'h1000'"),
        (["--model", "Qwen/Qwen3-235B-A22B", "--port", "0"], "does not fit"),
        (["--tokenizer", "/nowhere/at/all", "--port", "0"], "/nowhere/at/all"),
        (["--cluster", "/nowhere.yaml"], "cannot be read"),
    ],
)
def test_bad_flags_end_with_status_2_and_one_message(arguments: list[str], part: str) -> None:
    result = CliRunner().invoke(serve, arguments)
    assert result.exit_code == 2
    assert part in result.output
    assert "Traceback" not in result.output


def test_flags_and_file_are_refused_together(tmp_path: Path) -> None:
    path = write(tmp_path, "modle: x\n")
    result = CliRunner().invoke(serve, ["--cluster", path, "--instances", "0"])
    assert result.exit_code == 2
    assert "modle" in result.output
    assert "instances must be at least 1" in result.output


def test_a_chat_template_that_takes_no_message_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def render(self, messages: Any, tools: Any = None, ending: str = "reply") -> str:
            raise ChatTemplateError("unexpected end of template")

    monkeypatch.setattr(tokenizer_loader, "load", lambda name: (tokenizer_loader.embedded(), Broken()))
    with pytest.raises(ConfigError) as refused:
        load_text_tools(ClusterConfig(tokenizer="folder"))
    assert refused.value.problems == ["tokenizer folder: unexpected end of template"]


MTP = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200_sxm", "tensor_parallel_size": 8, "num_speculative_tokens": 1}


def planned(**settings: object) -> ServedPool:
    [pool] = plan(ClusterConfig(**{"model": "Qwen/Qwen3-8B", **settings}))  # type: ignore[arg-type]
    return pool


def test_engines_count_from_the_first_token_or_from_the_one_behind_it() -> None:
    assert planned().limits.stream is None
    assert planned(stream_interval=10).limits.stream == StreamInterval(10)
    assert planned(stream_interval=10, engine="sglang").limits.stream == StreamInterval(10)
    assert planned(stream_interval=10, engine="trtllm").limits.stream == StreamInterval(10, from_start=True)
    with pytest.raises(ConfigError, match="stream_interval must be at least 1"):
        planned(stream_interval=0)


def test_vllm_counts_tokens_and_the_others_steps() -> None:
    drafted = MTP | {"stream_interval": 10, "acceptance_rate": 0.8}
    found = {engine: planned(engine=engine, **drafted).limits.stream for engine in ("vllm", "sglang", "trtllm")}
    assert found == {"vllm": StreamInterval(10), "sglang": StreamInterval(18), "trtllm": StreamInterval(18, from_start=True)}


def test_the_front_end_is_busy_with_chunks() -> None:
    for engine, token_s in (("trtllm", 0.0), ("sglang", 46e-6)):
        one, ten = planned(engine=engine), planned(engine=engine, stream_interval=10)
        output_s = [front_end_of(pool.deployment.engine, pool.limits).output_s for pool in (one, ten)]
        assert output_s == pytest.approx([token_s, token_s / 10])

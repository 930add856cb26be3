"""`llmirage catalog`: lists what is built in, as a table or as JSON."""

from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, json_of, refusal

from llmirage_client.commands.catalog import LISTS
from llmirage_client.sweep.file import study_path
from llmirage_client.workload import registry
from llmirage_server.cluster.routers import ROUTERS
from llmirage_server.config import ClusterConfig
from llmirage_server.config.file import make_config
from llmirage_server.perf.catalogue.lookup import list_gpus, list_models
from llmirage_server.perf.engines.lookup import list_engines


def listed(what: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json_of("catalog", what)
    return rows


@pytest.mark.parametrize("what", list(LISTS))
def test_a_table_names_every_entry(what: str) -> None:
    result = invoke("catalog", what)
    assert "\x1b" not in result.stdout
    for row in listed(what):
        assert row["name"] in result.stdout


def test_every_list_is_complete() -> None:
    assert [row["name"] for row in listed("workloads")] == [f"bundled:{name}" for name in registry.bundled()]
    assert [row["name"] for row in listed("gpus")] == [gpu.key for gpu in list_gpus()]
    assert [row["name"] for row in listed("models")] == [model.name for model in list_models()]
    assert [row["name"] for row in listed("engines")] == [engine.name for engine in list_engines()]
    assert [row["name"] for row in listed("routers")] == list(ROUTERS)
    formats = {row["name"]: row for row in listed("formats")}
    assert list(formats) == list(registry.FORMATS)
    assert formats["random_multi_turn"]["options"][:2] == ["max_turns", "min_turns"]
    assert formats["random_multi_turn"]["options_in_full"][0]["required"] is True


def test_every_entry_explains_itself() -> None:
    assert all(row["about"] for row in listed("workloads"))
    assert all(row["chooses"] for row in listed("routers"))
    for row in listed("gpus"):
        assert row["source"]
        assert row["confidence"]
        assert row["price_source"]
        assert row["node_link_source"]
    assert all(row["source"] and row["confidence"] for row in listed("models"))
    assert all(row["source"] for row in listed("engines"))


def test_a_gpu_shows_whose_kernels_were_measured() -> None:
    kernels = {row["name"]: row["kernels"] for row in listed("gpus")}
    assert (kernels["h100_sxm"], kernels["rtx_4090"], kernels["mi300x"]) == ("measured", "of l40s", "of its kind")


@pytest.mark.parametrize(
    ("name", "attention", "experts", "kv_kib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "32 GQA", None, 128),
        ("deepseek-ai/DeepSeek-V3", "61 MLA", "8 of 256 + shared", 68.6),
        ("deepseek-ai/DeepSeek-V3.2", "61 sparse MLA of 2,048 tokens", "8 of 256 + shared", 76.5),
        ("openai/gpt-oss-120b", "18 GQA of 128 tokens, 18 GQA", "4 of 128", 36),
        ("Qwen/Qwen3.5-27B", "48 gated delta, 16 GQA", None, 64),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "23 Mamba-2, 6 GQA", "6 of 128 + shared", 6),
        ("MiniMaxAI/MiniMax-M3", "3 GQA, 57 sparse GQA of 2,048 tokens", "4 of 128 + shared", 127.3),
    ],
)
def test_a_model_shows_its_architecture(name: str, attention: str, experts: str | None, kv_kib: float) -> None:
    (row,) = [row for row in listed("models") if row["name"] == name]
    assert (row["attention"], row["experts"], row["kv_kib_per_token"]) == (attention, experts, kv_kib)


def test_every_cluster_file_is_one_that_the_server_accepts() -> None:
    rows = listed("clusters")
    assert {"bundled:dense-8b", "bundled:disaggregated", "bundled:moe-30b"} < {row["name"] for row in rows}
    for row in rows:
        config = make_config(row["name"], {})
        assert config == make_config(row["file"], {})
        assert config.router == row["router"]
        assert all(pool.model in row["models"] and pool.gpu in row["pools"] for pool in config.all_pools)


def test_the_default_cluster_file_is_the_default() -> None:
    assert make_config("bundled:moe-30b", {}) == ClusterConfig()


def test_each_bundled_file_has_its_paragraph_in_the_readme() -> None:
    readme = (Path(registry.BUNDLED_DIRECTORY) / "README.md").read_text()
    for path in Path(registry.BUNDLED_DIRECTORY).rglob("*.*"):
        assert path.name == "README.md" or path.name in readme


def test_an_unknown_list_names_the_choices() -> None:
    result = refusal("catalog", "planets")
    for what in LISTS:
        assert what in result


def test_studies_are_listed_by_the_name_that_sweep_takes() -> None:
    rows = {row["name"]: row for row in listed("studies")}
    assert list(rows) == ["bundled:autoscaling", "bundled:pools", "bundled:routers"]
    assert rows["bundled:routers"]["points"] == 10
    assert rows["bundled:routers"]["varied"] == ["fixed_schedule_speedup", "router"]
    for name, row in rows.items():
        assert study_path(name) == row["file"]
        assert Path(row["file"]).is_file()

"""Engine profiles: defaults by GPU, host time, and files of the user's own."""

from dataclasses import fields
from pathlib import Path

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.constants import ENGINES
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.engines.lookup import find_engine, list_engines
from llmirage_server.perf.steps.step_model import StepBatch


def refusal(name: str) -> tuple[str, ...]:
    with pytest.raises(DeploymentError) as caught:
        find_engine(name)
    return tuple(caught.value.problems)


def test_every_engine_has_measured_kernels_and_a_source() -> None:
    engines = list_engines()
    assert tuple(e.name for e in engines) == ENGINES
    for engine in engines:
        assert engine.base == engine.name
        assert engine.source
        assert set(engine.flags) == {"gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "block_size"}


@pytest.mark.parametrize(("name", "found"), [("vLLM", "vllm"), ("TensorRT-LLM", "trtllm"), ("sgLang", "sglang")])
def test_an_engine_goes_by_name_and_title(name: str, found: str) -> None:
    assert find_engine(name).name == found


def test_blocks_are_the_engines_own() -> None:
    assert [find_engine(name).block_size for name in ENGINES] == [16, 1, 32]


def test_batch_limits_follow_the_memory_of_the_gpu_as_in_vllm() -> None:
    vllm = find_engine("vllm")
    limits = {
        g: tuple(vllm.tier(limit, find_gpu(g)) for limit in (vllm.max_num_seqs, vllm.max_num_batched_tokens))
        for g in ("h100", "l40s", "a100")
    }
    assert limits == {"h100": (1024, 8192), "l40s": (256, 2048), "a100": (256, 2048)}


def test_the_host_hides_behind_a_long_step_and_paces_a_short_one() -> None:
    vllm = find_engine("vllm")
    exposed = vllm.host_step_ms * 1e-3 + 10 * vllm.host_sequence_us * 1e-6
    hidden = vllm.hidden_step_ms * 1e-3 + 10 * vllm.hidden_sequence_us * 1e-6
    assert vllm.host_s(1.0, 10) == pytest.approx(exposed)
    assert vllm.host_s(0.0, 10) == pytest.approx(exposed + hidden)
    assert vllm.host_s(hidden / 2, 10) == pytest.approx(exposed + hidden / 2)


def test_an_engine_of_the_users_own_starts_from_a_named_one(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("base: vllm\ndecode_scale: 1.1\nmax_num_seqs: 77\nhost_step_ms: 2\n")
    engine = find_engine(str(file))
    assert (engine.name, engine.base, engine.scheduler) == ("ours", "vllm", "vllm")
    assert tuple(engine.tier(engine.max_num_seqs, find_gpu(gpu)) for gpu in ("h100", "l4")) == (77, 77)
    assert (engine.decode_scale, engine.host_step_ms, engine.block_size) == (1.1, 2, 16)


def test_scale_factors_stretch_gpu_time_by_the_kind_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text(
        "base: vllm\ndecode_scale: 2\nprefill_scale: 3\nprefill_in_place: 1\nlaunch_us: 0\n"
        "host_step_ms: 0\nhost_sequence_us: 0\nhidden_step_ms: 0\n"
    )
    zero = tmp_path / "plain.yaml"
    zero.write_text(
        "base: vllm\nprefill_in_place: 1\nlaunch_us: 0\nhost_step_ms: 0\nhost_sequence_us: 0\nhidden_step_ms: 0\n"
    )
    slow, plain = (Deployment.create("Llama-3.1-8B", "h100", engine=str(f)).roofline for f in (file, zero))
    assert slow.step_s([], [500] * 8) == pytest.approx(2 * plain.step_s([], [500] * 8))
    assert slow.step_s([(4096, 0)], []) == pytest.approx(3 * plain.step_s([(4096, 0)], []))
    mixed = slow.step_s([(8, 0)], [500] * 8) / plain.step_s([(8, 0)], [500] * 8)
    assert mixed == pytest.approx(2.5)
    operations = slow.explain([StepBatch([(8, 0)], [500] * 8)])
    assert sum(o.seconds for o in operations) == pytest.approx(slow.step_s([(8, 0)], [500] * 8))


def test_every_problem_of_a_file_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "base: vlm\nblock_size: 0\nhost_step_m: 1\nkv_pool: share_of_all\ngpu_memory_utilization: 1.2\n"
        "max_num_seqs: {70: 5}\nasync_scheduling: 1\nhost_step_ms: -1\ntitle: 5\n"
    )
    known = ["base", *(field.name for field in fields(Engine))]
    assert refusal(str(file)) == (
        f"{file}:1: base: unknown engine 'vlm'; did you mean vllm?",
        f"{file}:2: block_size: must be a positive integer",
        f"{file}:3: host_step_m: unknown key; did you mean host_step_ms?",
        f"{file}:4: kv_pool: unknown key; known: {', '.join(known)}",
        f"{file}:5: gpu_memory_utilization: must be at most 1",
        f"{file}:6: max_num_seqs: must be a positive integer, or one for each GPU memory in GiB from 0 on",
        f"{file}:7: async_scheduling: must be true or false",
        f"{file}:8: host_step_ms: must be a number, at least 0",
        f"{file}:9: title: must be text",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("block_size: 16\n", ": base is missing; choices: vllm, sglang, trtllm"),
        ("- 1\n", ":1: an engine file is a list of `key: value` lines"),
        ("", ":1: an engine file is a list of `key: value` lines"),
        ("a: [\n", ":2: not valid YAML: "),
    ],
)
def test_what_is_no_engine_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "e.yml"
    file.write_text(text)
    assert refusal(str(file))[0].startswith(f"{file}{problem}")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.yaml"))[0].endswith("none.yaml: cannot be read: No such file or directory")
    assert refusal("vlm") == ("unknown engine 'vlm'; did you mean vllm?",)
    assert refusal("zzz") == ("unknown engine 'zzz'; choices: vllm, sglang, trtllm",)

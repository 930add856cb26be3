"""What `make compile` builds: nobody runs what is out of date, and results are those of the sources."""

import importlib
import importlib.util
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import llmirage_server
from llmirage_client.cli import main
from llmirage_shared import compiled

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with two sources, compiled a moment ago."""
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.setattr(compiled, "MANIFEST", tmp_path / "compiled.manifest")
    for name in ("tree.py", "with blank.py"):
        (tmp_path / name).write_text("x = 1\n")
    compiled.write_manifest(compiled.stamps(["tree.py", "with blank.py"]))
    return tmp_path


def test_what_was_just_compiled_is_used(checkout: Path) -> None:
    assert [stamp[0] for stamp in compiled.compiled_sources()] == ["tree.py", "with blank.py"]
    assert compiled.outdated() == []
    assert compiled.complaint() is None
    assert compiled.note() == " (compiled)"


def test_a_source_of_another_length_or_with_other_words_of_the_same_length_is_noticed(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 12\n")
    (checkout / "with blank.py").write_text("x = 2\n")
    os.utime(checkout / "with blank.py", ns=(1, 1))
    assert compiled.outdated() == ["tree.py", "with blank.py"]
    assert compiled.complaint() == (
        "compiled modules are out of date: tree.py, with blank.py changed since. "
        "Run `make compile` again, or `make uncompile`."
    )


def test_a_source_that_was_written_again_as_it_was_is_the_same(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 1\n")
    os.utime(checkout / "tree.py", ns=(1, 1))
    assert compiled.outdated() == []


def test_a_source_that_is_gone_is_noticed(checkout: Path) -> None:
    (checkout / "tree.py").unlink()
    assert compiled.outdated() == ["tree.py"]


def test_another_interpreter_sees_nothing_of_it(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 12\n")
    lines = compiled.MANIFEST.read_text().splitlines()
    compiled.MANIFEST.write_text("\n".join([".cpython-39-other.so", *lines[1:]]) + "\n")
    assert compiled.complaint() is None
    assert compiled.note() == ""


def test_a_wheel_with_compiled_modules_has_no_sources_to_compare(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 12\n")
    compiled.MANIFEST.write_text(f"{EXTENSION_SUFFIXES[0]}\n")
    assert compiled.complaint() is None
    assert compiled.note() == " (compiled)"


def test_without_a_build_there_is_nothing_to_say(checkout: Path) -> None:
    compiled.MANIFEST.unlink()
    assert compiled.complaint() is None
    assert compiled.note() == ""


def test_no_command_runs_what_is_out_of_date(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 12\n")
    result = CliRunner().invoke(main, ["catalog"])
    assert result.exit_code == 2
    assert "out of date: tree.py changed since" in result.output


def test_nor_does_a_program_that_imports_the_engine(checkout: Path) -> None:
    (checkout / "tree.py").write_text("x = 12\n")
    with pytest.raises(ImportError, match=r"out of date: tree\.py changed since"):
        importlib.reload(llmirage_server)


# --- the build -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_tool", ROOT / "tools/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_is_there_once(tool: ModuleType) -> None:
    assert len(set(tool.MODULES)) == len(tool.MODULES)
    assert [module for module in tool.MODULES if not (ROOT / tool.source(module)).is_file()] == []


def test_classes_that_others_inherit_from_are_open_and_what_they_inherit_from_too(tool: ModuleType) -> None:
    classes = tool.open_classes()
    assert {"Instance", "InstanceBase", "Cluster", "InFlightRequest"} <= classes  # of tests, and what is above
    assert "SummedBatch" not in classes


def test_a_value_unseen_by_compiled_code_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("shared", "server/llmirage_server", "client", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    hot, cold = tmp_path / "server/llmirage_server/hot.py", tmp_path / "server/llmirage_server/cold.py"
    hot.write_text(
        "class Base:\n    tiered = False\n    level: int\n    def grow(self):\n        self.tokens += 1\n"
        "    @property\n    def size(self): ...\nclass Cache(Base): ...\n"
    )
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "MODULES", ["llmirage_server.hot"])
    for body, name in (
        ("tiered: bool = True", "tiered"),
        ("__slots__ = ('tiered',)", "tiered"),
        ("level = 2", "level"),
        ("@property\n    def tokens(self): ...", "tokens"),
    ):
        cold.write_text(f"class Tiered(Cache):\n    {body}\n")
        with pytest.raises(tool.CannotBuildError, match=rf"llmirage_server/cold\.py: Tiered\.{name} would not be seen"):
            tool.open_classes()
    cold.write_text("class Tiered(Cache):\n    level: int\n    def grow(self): ...\n    size = property(len)\n")
    assert tool.open_classes() == {"Base", "Cache"}


def test_a_class_without_its_hash_is_refused(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    path = tmp_path / "hot.py"
    path.write_text("class Entry:\n    def __lt__(self, other): return False\n")
    with pytest.raises(tool.CannotBuildError, match=r"hot\.py: Entry compares: give it a __hash__ too"):
        tool.check_hashes(path)
    path.write_text(path.read_text() + "    def __hash__(self): return object.__hash__(self)\n")
    tool.check_hashes(path)


def test_a_class_is_opened_in_the_copy_alone(tool: ModuleType) -> None:
    text = "from __future__ import annotations\n\nclass Router(ABC):\n    pass\n\nclass Routers:\n    pass\n"
    opened = tool.opened(text, {"Router", "Other"})
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\nclass Router(ABC)" in opened
    assert opened.count("@mypyc_attr") == 1
    compile(opened, "copy.py", "exec")
    assert tool.opened("class Routers:\n    pass\n", {"Router"}) == "class Routers:\n    pass\n"


def test_a_missing_compiler_is_told_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/compile.py")],
        env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


# --- where it was built: the same results --------------------------------------------------------------------------------

_JOBS = """
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader


class SourcesAlone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None or not name.startswith("llmirage_"):
            return None
        found = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name) for folder in path)
        return next((spec for spec in found if spec is not None), None)


if sys.argv[1] == "sources":
    sys.meta_path.insert(0, SourcesAlone)

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulator.engine import Cluster, ClusterConfig
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.config import EventConfig, PoolConfig

LLAMA = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm"}
SMALL = {**LLAMA, "block_size": 16, "num_gpu_blocks_override": 150, "max_model_len": 1500}
DRAFTS = {"draft_model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3, "acceptance_rate": 0.6}
RANKS = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "h100_sxm", "data_parallel_size": 2, "expert_parallel_size": 2}
CRASHES = (
    EventConfig(at_s=1.0, action="crash", instance=0, restart_after_s=0.5),
    EventConfig(at_s=2.0, action="stop", instance=1),
)
HALVES = tuple(PoolConfig(name=role, role=role, instances=2, **SMALL) for role in ("prefill", "decode"))

print(type(Cluster.submit).__name__, file=sys.stderr)
for cluster, options, shape in (
    ({**LLAMA, "instances": 3}, {"request_rate_per_s": 40.0}, {}),
    ({**LLAMA, "instances": 1}, {"concurrency": 300}, {}),
    ({**LLAMA, "instances": 2}, {"concurrency": 40}, {"turns": 6, "wait_s": 1.0}),
    ({**SMALL, "instances": 2, "engine": "vllm", "router": "kv_aware"}, {"concurrency": 60}, {"turns": 3}),
    ({**SMALL, "instances": 2, "engine": "sglang", "schedule_policy": "lpm"}, {"concurrency": 60}, {"turns": 3}),
    ({**SMALL, "instances": 2, "engine": "trtllm", "router": "session"}, {"request_rate_per_s": 60.0}, {"turns": 3}),
    ({**SMALL, "instances": 3, "engine": "sglang", "enable_mixed_chunk": True, "events": CRASHES}, {"concurrency": 60}, {}),
    ({**SMALL, "instances": 1, "engine": "vllm", "host_kv_gib": 1.0}, {"concurrency": 20}, {"turns": 4}),
    ({**SMALL, "instances": 1, "engine": "trtllm", **DRAFTS}, {"concurrency": 20}, {}),
    ({**SMALL, "instances": 1, "engine": "vllm", "pipeline_parallel_size": 2}, {"concurrency": 20}, {}),
    ({**RANKS, "instances": 1}, {"concurrency": 30}, {"turns": 2}),
    ({"pools": HALVES, "router": "least_loaded"}, {"concurrency": 30}, {"turns": 2}),
    ({**LLAMA, "instances": 4, "scale_on_concurrency": 20.0, "start_up_s": 1.0}, {"request_rate_per_s": 30.0}, {}),
    ({"ttft_ms": 50.0, "itl_ms": 5.0, "instances": 2}, {"concurrency": 30}, {"turns": 2}),
):
    plain = cluster.keys() <= {"model", "gpu", "instances"}
    load = synthetic_load("20:1800" if plain else "20:400", "1:300" if plain else "1:80", 600, seed=1, **shape)
    done = simulate(ClusterConfig(**cluster), load, RunOptions(seed=1, **options))
    print(done.summary)
    for record in done.result.records:
        print(record)
"""


@pytest.mark.skipif(not compiled.compiled_sources(), reason="nothing is compiled here: make compile")
def test_all_that_was_compiled_is_what_runs(tool: ModuleType) -> None:
    suffixes = tuple(EXTENSION_SUFFIXES)
    sources = [name for name in tool.MODULES if not str(importlib.import_module(name).__file__).endswith(suffixes)]
    assert sources == []


@pytest.mark.skipif(not compiled.is_compiled(), reason="nothing is compiled here: make compile")
def test_compiled_modules_and_sources_give_the_same_records() -> None:
    both = [
        subprocess.run([sys.executable, "-c", _JOBS, way], capture_output=True, text=True, check=True)
        for way in ("compiled", "sources")
    ]
    assert [each.stderr.strip() for each in both] == ["method_descriptor", "function"]
    assert both[0].stdout.count("\n") > 14 * 600
    assert both[0].stdout == both[1].stdout

"""YAML whose aliases stand for very much or for themselves, or whose keys stand twice: refused by whatever reads files."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from llmirage_client.workload.registry import load
from llmirage_client.workload.session import WorkloadError
from llmirage_client.workload.synthesis.parameters import read_yaml
from llmirage_server.commands.record_actions import ForeignFileError
from llmirage_server.commands.record_actions import _read as cassette_of
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.perf.catalogue.models import model_from_file
from llmirage_server.perf.deployment import DeploymentError
from llmirage_server.replies.recordings.recording import Recording, RecordingError
from llmirage_shared.settings import ConfigError
from llmirage_shared.yaml_lines import read_mapping, read_plain

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
CYCLE = "a: &a [1, *a]\n"
MERGED = "base: &base {x: 1, y: [1, 2]}\nother: {z: *base}\nthird: *base\n"


TWICE = "a:\n  - {b: 1}\n  - c: 1\n    d: 2\n    c: 3\n"
DEEP = "a: " + "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "aliases stand for more than"),
        (CYCLE, "contains itself"),
        (TWICE, "'c' stands twice in a mapping, first in line 3"),
        (DEEP, "nested too deep"),
    ],
)
def test_what_yaml_cannot_mean_is_refused_by_every_reader(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    readers: list[tuple[type[Exception], Any]] = [
        (ConfigError, lambda: read_mapping(str(path))),
        (RecordingError, lambda: Recording.read(text, "r")),
        (WorkloadError, lambda: read_yaml(path, "w")),
        (DeploymentError, lambda: model_from_file(str(path))),
        (ForeignFileError, lambda: cassette_of(path, "auto")),
        (ConfigError, lambda: InstanceSettings(engine_args=f"trtllm-serve m --extra_llm_api_options {path}")),
    ]
    started_s = time.process_time()
    for error, read in readers:
        with pytest.raises(error, match=told) as raised:
            read()
        assert text != TWICE or re.search(r"line 5|:5:", f"{raised.value} {raised.value.__dict__}")
    assert time.process_time() - started_s < 1


def test_the_header_of_a_trace_with_such_aliases_is_none(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data/traces"
    (tmp_path / "t.csv").write_text((source / "blis_tracev2_data.csv").read_text())
    header = (source / "blis_tracev2_header.yaml").read_text()
    (tmp_path / "t.yaml").write_text(header + BOMB)
    started_s = time.process_time()
    with pytest.raises(WorkloadError):
        load(str(tmp_path / "t.yaml"), "blis_trace")
    assert time.process_time() - started_s < 1


def test_aliases_that_repeat_little_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(MERGED)
    entries = read_mapping(str(tmp_path / "a.yaml"))
    assert [entry.key for entry in entries] == ["base", "other", "third"]
    monkeypatch.setattr("llmirage_shared.yaml_lines._MOST_REPEATED", 1_000)
    read_plain("a: 'R&D * 2'\n" + "".join(f"k{place}: [1, 2, 3]\n" for place in range(500)))

"""Limits below the 16 tokens that /v1/responses takes at least."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmirage import Server
from llmirage_client.cli import main

NOTE = "Turns with a limit below 16 tokens: 2. They asked for 16, the least that responses takes."


@pytest.mark.parametrize(
    ("settings", "tokens", "notes"), [({}, 3, []), ({"dialect": "vllm"}, 3, []), ({"dialect": "sglang"}, 16, [NOTE])]
)
def test_short_turns_reach_every_server(tmp_path: Path, settings: Any, tokens: int, notes: list[str]) -> None:
    file, out = tmp_path / "turns.jsonl", tmp_path / "out"
    turns = [{"text": text, "output_length": 3} for text in ("Hello", "And again")]
    file.write_text(json.dumps({"session_id": "s", "turns": turns}) + "\n")
    with Server(port=0, ttft=0, itl=0, **settings) as server:
        words = [
            "run", file, "--url", server.base_url, "--endpoint-type", "responses", "--model", "m", "--artifact-dir", out,
        ]  # fmt: skip
        result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "profile_export_aiperf.json").read_text())
    assert summary["request_count"]["avg"] == 2
    assert summary["output_sequence_length"]["max"] == tokens
    assert [note for note in summary["llmirage"]["notes"] if "limit" in note] == notes

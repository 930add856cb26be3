"""Profiles of synthetic workloads from YAML: whatever a file holds, it is a profile or every problem with its line."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from workload_files import mutate

from llmirage_client.workload.session import WorkloadError
from llmirage_client.workload.synthesis import conversations
from llmirage_client.workload.synthesis.conversations import draw_plan
from llmirage_client.workload.synthesis.parameters import PARAMETERS, defaults, presets, put, read_profile


def small(path: str) -> None:
    """Reads a profile and draws little from it; few samples, for what matters is that there are any figures."""
    profile = read_profile(path, [("conversations", 3), ("documents.pool", 5), ("shared_context.groups", 2)])
    if max(profile.distributions["turns"].sample(np.random.default_rng(0), 50)) < 100:
        plan = draw_plan(profile, 0)
        assert sum("/" not in one.name for one in plan.conversations) == 3
        with patch.object(conversations, "_SAMPLES", 100):
            assert conversations.compare(profile, plan)


@given(st.data())
def test_any_mutant_of_a_preset_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tree = yaml.safe_load(data.draw(st.sampled_from(sorted(presets().values()))).read_text())
    path = tmp_path_factory.mktemp("mutant") / "mine.yaml"
    path.write_text(yaml.safe_dump(mutate(tree, data)), encoding="utf-8", errors="replace")
    try:
        small(str(path))
    except WorkloadError as error:
        refused = error.problems
    else:
        refused = ()
    assert all(problem.message for problem in refused)


@given(st.text(max_size=40))
def test_any_text_is_a_profile_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "mine.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_profile(str(path))
    except WorkloadError as error:
        refused = error.problems
    else:
        refused = ()
    assert all(problem.message for problem in refused)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("turns: &a {mean: *a}", "invalid YAML: "),
        ("arrivals: 5", "line 1: arrivals: has parameters of its own: process, rate_per_s, cv"),
        ("arrivals: {process: {a: 1}}", "line 1: arrivals.process.a: there is no such parameter"),
        ("turns:", "line 1: turns: None is not a distribution; write a number"),
        ("conversations: [1]", "line 1: conversations: [1] is no number from 1 to 1e+06"),
        ("preset: cat", "line 1: preset: 'cat' is not one of agent-chain, batch"),
        ("preset: [chat]", "line 1: preset: ['chat'] is not one of agent-chain, batch"),
        ("exact_replies: maybe", "line 1: exact_replies: 'maybe' is neither true nor false"),
        ("forks:\n  children: 0", "line 2: forks.children: gives 0; values below 1 are not allowed here"),
        ("turns: 1000000", "line 1: turns: gives 1e+06; values above 100,000 make no sense here"),
        ("output: 1:100000000", "line 1: output: gives 1e+08; values above 10,000,000 make no sense here"),
        ("turns: {distribution: [1]}", "line 1: turns: there is no distribution '[1]'"),
        ("1: 2", "line 1: 1: there is no such parameter"),
    ],
)
def test_each_kind_of_slip_has_its_message(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_profile(str(path))
    assert len(caught.value.problems) == 1
    assert problem in str(caught.value)


def test_every_parameter_has_a_valid_default_and_can_be_set() -> None:
    values = defaults()
    for name, parameter in PARAMETERS.items():
        put(values, name, parameter.default)
    assert values == defaults()

"""The cluster's side of a simulated run: its file and its charts."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from drawn import Document, charts_of
from made_runs import family, run

from llmirage_client.cli import main
from llmirage_client.measure.run_folder import CLUSTER_FILE, ClusterLevels, RunFolderError, read_cluster_series
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.html.charts import coarser
from llmirage_client.report.html.run_sections import cluster_section


def series(instances: int, stretches: int = 50) -> ClusterLevels:
    rng = np.random.default_rng(0)
    kv = rng.random((instances, stretches)) * 100
    kv[0, 0] = np.nan
    return ClusterLevels(
        tuple(f"instance {i}" for i in range(instances)),
        np.arange(stretches + 1.0),
        {"own_name": kv, "kv_used_pct": kv, "running": np.round(kv)},
        {"attention": 3.0, "mlp": 1.0},
    )


def test_a_series_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = series(3)
    assert made.write(tmp_path).name == CLUSTER_FILE
    read = read_cluster_series(tmp_path)
    assert read is not None
    assert read.instances == made.instances
    assert read.step_time_s == made.step_time_s
    np.testing.assert_allclose(read.edges_s, made.edges_s)
    for name, values in made.levels.items():
        np.testing.assert_allclose(read.levels[name], values, atol=1e-4)


def test_a_run_without_the_file_has_no_series(tmp_path: Path) -> None:
    assert read_cluster_series(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"instances": ["a"], "edges_s": [0, 1], "levels": {"x": [[1, 2]]}}',
        '{"instances": 1, "edges_s": "x"}',
        '{"instances": ["a"], "edges_s": [0, 1], "levels": {"x": 3}}',
        '{"instances": [], "edges_s": [], "levels": {}, "step_time_s": 1}',
    ],
)
def test_a_broken_file_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / CLUSTER_FILE).write_text(content)
    with pytest.raises(RunFolderError, match=CLUSTER_FILE):
        read_cluster_series(tmp_path)


def test_few_instances_are_lines_and_many_are_rows_of_colour() -> None:
    few, many = (charts_of("".join(cluster_section(series(n)).blocks)) for n in (2, 24))
    assert not any("cells" in chart.panels[0] for chart in few)
    assert ["cells" in chart.panels[0] for chart in many] == [True] * 3 + [False]
    assert many[0].panels[0]["y"]["names"][-1] == "instance 23"


def test_known_levels_come_first_and_have_their_words() -> None:
    titles = [chart.title for chart in charts_of("".join(cluster_section(series(2)).blocks))]
    assert titles == ["Batch size", "KV cache in use", "Own name", "Where the time of steps went"]


def test_a_level_that_was_never_above_0_is_a_word_instead_of_a_chart() -> None:
    levels = {"running": np.ones((1, 2)), "preemptions": np.zeros((1, 2)), "waiting": np.full((1, 2), np.nan)}
    blocks = "".join(cluster_section(ClusterLevels(("i",), np.arange(3.0), levels)).blocks)
    assert [chart.title for chart in charts_of(blocks)] == ["Batch size"]
    assert "0 on every instance all the time: preemptions." in blocks


def test_many_samples_are_averaged_by_how_long_they_lasted() -> None:
    edges = np.concatenate([[0.0, 3.0], np.arange(4.0, 203.0)])  # the first stretch is three times as long
    levels = np.ones((1, edges.size - 1))
    levels[0, 0] = 5.0
    coarse_edges, coarse = coarser(edges, levels, 100)
    assert coarse.shape == (1, 100)
    assert coarse[0, 0] == (3 * 5 + 1) / 4
    assert coarse_edges[-1] == edges[-1]
    assert np.isclose((coarse * np.diff(coarse_edges)).sum(), (levels * np.diff(edges)).sum())


def test_shares_of_step_time_add_up() -> None:
    last = charts_of("".join(cluster_section(series(2)).blocks))[-1]
    assert last.rows == [["attention", "share: 75 %"], ["mlp", "share: 25 %"]]


def test_the_report_of_a_simulated_run_shows_its_cluster(tmp_path: Path) -> None:
    write_artifacts(run(family()), tmp_path, command=["llmirage", "simulate"])
    series(2).write(tmp_path)
    assert CliRunner().invoke(main, ["report", str(tmp_path)]).exit_code == 0
    assert "KV cache in use" in Document((tmp_path / "report.html").read_text()).text
    (tmp_path / CLUSTER_FILE).write_text("torn")
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 0
    assert "the page is without it" in done.output

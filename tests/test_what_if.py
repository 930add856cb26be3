"""docs/what-if.md says what its commands print: the cheapest of them is run, and every bold figure is in some output."""

from pathlib import Path

import pytest
import what_if_docs

from llmirage_client.sweep.file import read_study, study_path
from llmirage_client.sweep.point import problems_of
from llmirage_shared.settings import ConfigError

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "what-if.md").read_text(encoding="utf-8")


def test_the_study_of_pools_prints_what_the_page_shows() -> None:
    fresh = what_if_docs.rewritten(PAGE, "bundled:pools")
    assert "replies 9/s" in fresh
    assert fresh == PAGE


def test_every_bold_figure_is_printed_in_its_section() -> None:
    assert what_if_docs.unfounded(PAGE) == []


def test_a_figure_from_nowhere_is_told() -> None:
    page = "## Which?\n```console\n$ llmirage sweep x\nTTFT 307\n```\n**307** ms, not **1,234** ms.\n"
    assert what_if_docs.unfounded(page) == ["Which?: 1,234 is in no output"]


def test_every_bundled_study_can_be_worked_out_and_is_explained() -> None:
    explained = (ROOT / "workloads" / "README.md").read_text(encoding="utf-8")
    names = [path.stem for path in (ROOT / "workloads" / "studies").glob("*.yaml")]
    assert {"routers", "pools"} <= set(names)
    for name in names:
        study = read_study(study_path(f"bundled:{name}"))
        assert problems_of(study.points) == []
        assert not any(point.refused for point in study.points)
        assert f"`studies/{name}.yaml`" in explained


def test_a_study_that_is_not_bundled_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"no study 'rooters' is bundled \(did you mean 'routers'\?\); there are"):
        study_path("bundled:rooters")

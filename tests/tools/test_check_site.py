"""What `make docs-site` refuses besides what zensical finds: tools/check_site.py on small sites."""

import json
from pathlib import Path

import check_site
import pytest


def problems(folder: Path, page: str) -> list[str]:
    (folder / "how-to").mkdir()
    (folder / "index.html").write_text('<h1 id="top">Home</h1><a href="how-to/size.html">Size</a>', encoding="utf-8")
    (folder / "how-to/size.html").write_text(page, encoding="utf-8")
    (folder / "how-to/study.yaml").write_text("name: x", encoding="utf-8")
    found: list[str] = check_site.problems_of(folder.resolve())
    return found


def test_what_is_there_is_no_problem(tmp_path: Path) -> None:
    page = '<a href="../index.html#top"></a><a href="..">up</a><a href="#own" id="own"></a><a href="study.yaml"></a>'
    assert problems(tmp_path, page + '<a href="https://example.com/x#y"></a><img src="data:image/png;base64,AA==">') == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="gone.html">x</a>', "gone.html leads nowhere"),
        ('<img src="gone.png">', "gone.png leads nowhere"),
        ('<a href="../../outside.html">x</a>', "../../outside.html leads nowhere"),
        ('<a href="../index.html#gone">x</a>', "../index.html#gone has no such anchor"),
        ('<a href="#gone">x</a>', "#gone has no such anchor"),
        ('<script src="https://example.com/x.js"></script>', "https://example.com/x.js is fetched from elsewhere"),
        ('<link rel="stylesheet" href="//example.com/x.css">', "//example.com/x.css is fetched from elsewhere"),
    ],
)
def test_a_dead_link_is_told_with_its_page(tmp_path: Path, page: str, problem: str) -> None:
    assert problems(tmp_path, page) == [f"how-to/size.html: {problem}"]


def test_a_page_that_no_other_page_leads_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "lost.html").write_text("<p>Lost</p>", encoding="utf-8")
    assert problems(tmp_path, "<p>Size</p>") == ["lost.html: no page leads here"]


def test_a_folder_without_pages_is_no_site(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_site.problems_of(tmp_path)


def test_a_search_finds_the_section_that_has_all_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = [
        {"location": "faults.html#a", "title": "Inject a fault", "text": "<p>Errors</p>"},
        {"location": "faults.html#b", "title": "Others", "text": "<p>A timeout</p>"},
        {"location": "load.html", "title": "Load", "text": "inject timeouts"},
    ]
    (tmp_path / "search.json").write_text(json.dumps({"items": sections}), encoding="utf-8")
    searches = {"inject error": "faults.html", "inject timeout": "faults.html", "inject  TIMEOUT": "load.html"}
    monkeypatch.setattr(check_site, "SEARCHES", searches)
    assert check_site.missed_searches(tmp_path) == ["the search for 'inject timeout' finds nothing in faults.html"]

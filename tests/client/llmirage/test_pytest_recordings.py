"""What a real endpoint answered to a test is replayed: the pytest plugin's recordings."""

from collections.abc import Iterator

import pytest
from pytest_project import Project

import llmirage

YOU_SAID = [{"reply": "You said {user}."}]
RECORDED = """
    @pytest.mark.llmirage(recorded=True)
    @pytest.mark.parametrize("text", ["Hello", "Good/bye"])
    def test_it(llmirage_server, text):
        assert said(llmirage_server, text) == f"You said {text}."

    def test_another(llmirage_server):
        assert said(llmirage_server)
"""


@pytest.fixture
def upstream() -> Iterator[llmirage.Server]:
    with llmirage.Server(port=0, speed="max", script=YOU_SAID, api_key="sk-real-key") as server:
        yield server


def test_an_endpoints_answers_are_replayed(
    project: Project, upstream: llmirage.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tests(RECORDED)
    with monkeypatch.context() as patch:
        patch.setenv("LLMIRAGE_UPSTREAM_KEY", "sk-real-key")
        project.run(f"--llmirage-record={upstream.base_url}", passed=3)
    upstream.expect(2)
    files = project.recordings()
    assert files == [
        "tests/recordings/test_it/test_it-Good-bye/chat-good-bye.yaml",
        "tests/recordings/test_it/test_it-Hello/chat-hello.yaml",
    ]
    assert "sk-real-key" not in "".join([path.read_text() for path in project.folder.rglob("*.yaml")])
    project.run(passed=3)
    upstream.expect(2)


def test_a_test_without_recordings_says_how_to_make_them(project: Project) -> None:
    project.tests(RECORDED)
    output = project.run("-k", "Hello", errors=1)
    assert (
        "this test has no recordings. Record what a real endpoint answers, with its key in LLMIRAGE_UPSTREAM_KEY:" in output
    )
    assert "pytest 'tests/test_it.py::test_it[Hello]' --llmirage-record=URL" in output
    assert "_pytest_plugin.py" not in output


HIDES = """
    @pytest.mark.llmirage(recorded=True)
    def test_it(llmirage_server):
        try:
            assert said(llmirage_server, "TEXT")
        except Exception:
            pass
"""


def test_recordings_are_made_anew_and_a_request_without_one_fails_the_test(
    project: Project, upstream: llmirage.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMIRAGE_UPSTREAM_KEY", "sk-real-key")
    record = f"--llmirage-record={upstream.base_url}"
    project.tests(HIDES.replace("TEXT", "first"))
    project.run(record, passed=1)
    project.tests(HIDES.replace("TEXT", "second"))
    output = project.run(failed=1)
    assert "no recording fits 1 request:" in output
    assert "differs at messages[0].content" in output
    assert "Record what a real endpoint answers, with its key in LLMIRAGE_UPSTREAM_KEY:" in output
    assert "pytest 'tests/test_it.py::test_it' --llmirage-record=URL" in output
    project.run("--llmirage-record=http://127.0.0.1:9", passed=1)  # nobody is there
    assert project.recordings() == ["tests/recordings/test_it/test_it/chat-first.yaml"]
    project.run(record, passed=1)
    project.run(passed=1)
    assert project.recordings() == ["tests/recordings/test_it/test_it/chat-second.yaml"]
    assert not list(project.folder.glob("tests/recordings/**/.*"))


def test_a_recorded_test_takes_no_script(project: Project) -> None:
    project.tests("""
        @pytest.mark.llmirage(recorded=True, replay="elsewhere")
        def test_it(llmirage_server): pass

        @pytest.mark.llmirage(recorded="elsewhere")
        def test_name(llmirage_server): pass
    """)
    output = project.run(errors=2)
    assert "@pytest.mark.llmirage: replay is what recorded=True sets" in output
    assert "@pytest.mark.llmirage: recorded must be True or False, not 'elsewhere'" in output


def test_the_recorded_example_of_the_page_passes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.shown("test_capital.py")
    with llmirage.Server(port=0, speed="max", script=[{"when": {"user": "France"}, "reply": "Paris."}]) as upstream:
        project.run(f"--llmirage-record={upstream.base_url}", passed=1)
    assert project.recordings() == ["recordings/test_capital/test_the_capital/chat-the-capital-of-france-in-one-word.yaml"]
    project.run("-W", "error", passed=1)

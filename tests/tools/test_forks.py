"""`--forks` runs every test once and tells what pytest tells in one process, and of tests that end their process."""

import os
from pathlib import Path

import pytest

FILES = {
    "test_ends": """
        import os, signal

        def ends():
            with open(os.environ["ENDED"], "a") as ended:
                ended.write(f"{os.getpid()} ")

        def test_passes(): pass
        def test_is_killed(): ends(); os.kill(os.getpid(), signal.SIGKILL)
        def test_leaves(): ends(); os._exit(0)
        def test_still_runs(): pass
    """,
    "test_shares": """
        import os, warnings
        import pytest

        @pytest.fixture(scope="session")
        def shared():
            yield
            with open(os.environ["ENDED"], "a") as ended:
                ended.write(f"{os.getpid()} ")

        @pytest.mark.parametrize("number", range(20))
        def test_has_it(shared, number, capfd, tmp_path):
            assert not list(tmp_path.iterdir())
            os.system(f"echo {number}")
            assert capfd.readouterr().out == f"{number}\\n"
            with open(os.environ["RAN"], "a") as ran:
                ran.write(f"{os.getpid()} ")

        def test_fails(): print("what was printed"); assert 1 == 2
        def test_warns(): warnings.warn("look out")
        @pytest.mark.skip(reason="not here")
        def test_is_skipped(): pass
    """,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without forks the tests run in one process")
def test_forks_report_every_test_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytester.makepyfile(**FILES)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    for name in ("RAN", "ENDED"):
        monkeypatch.setenv(name, str(tmp_path / name))

    result = pytester.runpytest_subprocess(
        "-p", "forks", "--forks", "3", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"
    )

    assert result.parseoutcomes() == {"passed": 23, "failed": 3, "skipped": 1, "warnings": 1}
    result.stdout.fnmatch_lines(["*_ test_fails _*", "E * assert 1 == 2", "what was printed"])
    result.stdout.fnmatch_lines(["*UserWarning: look out"])
    result.stdout.fnmatch_lines_random(
        ["*_ test_is_killed _*", "*ended with status -9", "*_ test_leaves _*", "*ended with status 0"]
    )
    ran, ended = ((tmp_path / name).read_text().split() for name in ("RAN", "ENDED"))
    assert len(ran) == 20
    assert set(ran) <= set(ended)
    assert len(ended) == len(set(ended))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without forks the tests run in one process")
def test_the_first_failure_ends_all_forks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.parametrize("number", range(40))
        def test_it(number):
            time.sleep(0.2)
            assert number
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    result = pytester.runpytest_subprocess("-p", "forks", "--forks", "2", "-x", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    counts = result.parseoutcomes()
    assert counts["failed"] == 1
    assert counts.get("passed", 0) < 30

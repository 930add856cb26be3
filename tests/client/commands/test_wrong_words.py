"""What is said to who mistypes: one clear message, and exit status 2."""

import pytest
from click.testing import CliRunner

from llmirage_client.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rnu",), "Error: there is no command 'rnu' (did you mean 'run'?)"),
        (("frobnicate",), "Error: there is no command 'frobnicate'"),
        (
            ("catalog", "gpu"),
            "Error: Invalid value for 'LIST': 'gpu' is not one of 'workloads', 'clusters', 'studies', 'gpus',",
        ),
        (("run",), "Error: give a workload (a file, bundled:NAME or a preset), or --isl and --osl"),
        (("simulate", "--isl", "5"), "Error: give a workload (a file, bundled:NAME or a preset), or --isl and --osl"),
    ],
)
def test_the_message_names_what_is_wrong(words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(main, words, prog_name="llmirage")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[3].startswith(message)


def test_a_server_that_is_not_there() -> None:
    done = CliRunner().invoke(main, ["verdict", "localhost:1"])
    assert (done.exit_code, done.stderr) == (
        1,
        "llmirage verdict: localhost:1: nothing listens there; `llmirage serve` starts a server\n",
    )

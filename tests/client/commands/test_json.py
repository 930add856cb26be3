"""--json of every command: JSON and nothing else on standard output, with the fields that docs/artifacts.md tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import SERVERS, command_of, commands, first_line_of, served_beside, typed

DOCS = Path(__file__).parents[3] / "docs"
LINES = ("sweep",)  # a line for each result
ALWAYS = ("script schema",)  # what it prints is JSON as it is
TOLD = {
    words: set(re.findall(r"(?<=`)\w+(?=`)|[.]{3}", keys))
    for words, keys in re.findall(r"^\| `([a-z -]+)` \| (.+) \|$", (DOCS / "artifacts.md").read_text(), flags=re.MULTILINE)
}
QUICK = {("sweep",): 1}  # numbers of the examples that take less time than the first
EVERY = [words for words in commands() if words != ("script",)]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_beside(tmp_path_factory.mktemp("json")) as found:
        yield found


def printed(words: tuple[str, ...], port: str, *more: str) -> list[Any]:
    """Return what an example of the command prints with --json."""
    line = command_of(words).examples[QUICK.get(words, 0)]
    if words[0] in SERVERS and len(words) == 1:
        return [json.loads(first_line_of(line, "--json"))]
    done = typed(line, *(() if " ".join(words) in ALWAYS else ("--json",)), *more, port=port)
    assert done.exit_code in (0, 1, 3), done.output
    return [json.loads(text) for text in (done.stdout.splitlines() if words[0] in LINES else [done.stdout])]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_json_is_all_that_is_printed_and_its_fields_are_told(words: tuple[str, ...], port: str) -> None:
    if words == ("script", "init"):
        Path("replies.yaml").unlink(missing_ok=True)
    for found in printed(words, port):
        if " ".join(words) in ALWAYS:
            continue
        one = found[0] if isinstance(found, list) else found
        told = TOLD[" ".join(words)] | (TOLD["run"] if words == ("simulate",) else set())
        if "..." in told:
            assert told - {"..."} <= set(one)
        else:
            assert set(one) <= told, set(one) - told


def test_a_sweep_and_a_search_print_their_points(port: str) -> None:
    load = "llmirage run --isl 100 --osl 20 --requests 8 --random-seed 1 --json"
    done = typed(f"{load} --concurrency 1,2", port=port)
    assert [point["concurrency"] for point in json.loads(done.stdout)["points"]] == [1, 2]
    done = typed(f'{load} --find-max "ttft_p90<100s" --set find_max_upper_bound=2', port=port)
    assert json.loads(done.stdout)["search"]["highest_met"] == 2


def test_what_is_not_valid_is_told_in_json(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"session_id":"a","turns":[]}\n')
    done = typed(f"llmirage check {path} --format dag_jsonl --json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["valid"], told["problems"][0]["line"]) == (2, False, 1)
    script = tmp_path / "s.yaml"
    script.write_text("rules: 5\n")
    done = typed(f"llmirage script check {script} --json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["valid"], len(told["problems"])) == (2, False, 1)


@pytest.mark.parametrize("line", ["convert requests.jsonl --to dag_jsonl", "generate chat", "report artifacts/low -o -"])
def test_json_and_a_file_do_not_share_standard_output(line: str, port: str) -> None:
    done = typed(f"llmirage {line} --json", port=port)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "standard output cannot have both" in done.stderr

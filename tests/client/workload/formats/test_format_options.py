"""Options of formats, from the command line to the loader, and which file is taken for which format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workload_files import problems_of

from llmirage_client.workload.format import Option, parse_pairs, read_options, skip
from llmirage_client.workload.registry import FORMATS, bundled, detect, load
from llmirage_client.workload.session import Session, Turn, Workload, WorkloadError

DATA = Path(__file__).parents[3] / "data"
DECLARED = (
    Option("size", "integer", "", 4, minimum=1),
    Option("share", "number", "", 0.5),
    Option("fast", "boolean", "", False),
    Option("name", "text", ""),
    Option("span", "range", "", (2, 3)),
)


def read(**given: Any) -> dict[str, Any]:
    return read_options("f", "some_format", DECLARED, given, {})


def test_options_have_their_defaults_and_types() -> None:
    assert read() == {"size": 4, "share": 0.5, "fast": False, "name": None, "span": (2, 3)}
    given = {"size": "7", "share": "2", "fast": "yes", "name": "n", "span": "5:9"}
    assert read(**given) == {"size": 7, "share": 2.0, "fast": True, "name": "n", "span": (5, 9)}
    assert read(span=6)["span"] == read(span="6")["span"] == read(span=[6, 6])["span"] == (6, 6)


def test_what_is_given_goes_before_what_is_offered_and_offers_may_be_unknown() -> None:
    offered = {"size": 9, "name": "offered", "colour": "red", "share": None}
    values = read_options("f", "some_format", DECLARED, {"size": 2}, offered)
    assert (values["size"], values["name"], values["share"]) == (2, "offered", 0.5)


def test_all_problems_of_options_come_at_once() -> None:
    with pytest.raises(WorkloadError) as caught:
        read(size=0, share="x", fast="maybe", name=3, span="3:1", sizes=1, colour=2)
    assert [str(problem) for problem in caught.value.problems] == [
        "option sizes: some_format has no such option (did you mean 'size'?)",
        "option colour: some_format has no such option (it has size, share, fast, name, span)",
        "option size: Input should be greater than or equal to 1",
        "option share: Input should be a valid number, unable to parse string as a number",
        "option fast: Input should be a valid boolean, unable to interpret input",
        "option name: Input should be a valid string",
        "option span: has its end before its start (3 > 1)",
    ]


def test_pairs_and_objects_are_merged_in_order() -> None:
    assert parse_pairs(["a=1", '{"a": 2, "b": [1, 2]}', "c-d= x ", "e=[3, 4]", "f=[", "g=a=b"]) == {
        "a": 2, "b": [1, 2], "c_d": "x", "e": [3, 4], "f": "[", "g": "a=b",
    }  # fmt: skip
    for wrong in ("a", "=1", "{", '{"a"}'):
        with pytest.raises(ValueError, match=r"neither key=value nor a JSON object|is not a JSON object"):
            parse_pairs([wrong])


def workload(*arrivals_s: float | None) -> Workload:
    sessions = {str(i): Session(str(i), (Turn(),), arrival_s=arrival_s) for i, arrival_s in enumerate(arrivals_s)}
    return Workload("f", "p", sessions, tuple(sessions))


def test_an_offset_puts_the_first_conversations_last_or_drops_them_from_a_schedule() -> None:
    assert skip(workload(None, None, None), 1).roots == ("1", "2", "0")
    assert skip(workload(None, None, None), 1).skipped == 1
    assert skip(workload(0.0, 1.0, 2.0), 1).roots == ("1", "2")
    rest = skip(workload(0.0, 1.0, 2.5), 1)
    assert (rest.skipped, [rest.sessions[root].arrival_s for root in rest.roots]) == (0, [0.0, 1.5])
    assert skip(workload(None, None), 0) == workload(None, None)
    with pytest.raises(WorkloadError, match="2 skips all of the 2 conversations"):
        skip(workload(None, None), 2)


def test_every_format_takes_an_offset() -> None:
    whole = load("bundled:dag-three-roots")
    assert load("bundled:dag-three-roots", None, {"dataset_offset": 1}).roots == (*whole.roots[1:], whole.roots[0])
    timed = load("bundled:mixed-flat-agentic", None, {"dataset_offset": 2})
    assert timed.roots == load("bundled:mixed-flat-agentic").roots[2:]
    assert problems_of("bundled:dag-three-roots", max_turns=2) == [
        "option max_turns: dag_jsonl has no such option (it has dataset_offset)"
    ]


def test_a_format_that_needs_a_file_says_so_by_its_name() -> None:
    assert problems_of("dag_jsonl") == ["no such file; this is the name of a format, and needs a file"]


def examples() -> Iterator[tuple[str, str]]:
    names = {
        "custom_multi_turn.jsonl": "custom_multi_turn",
        "share_gpt.jsonl": "share_gpt",
        "trie.jsonl": "trie",
        "swe_smith.json": "swe_smith",
        "trajectories.jsonl": "swe_smith",
    }
    for file, name in names.items():
        yield str(DATA / "evalscope" / file), name
    for label, path in bundled().items():
        others = {"replay-example": "inputs_json", "coding-agent": "agentic_jsonl", "mixed-flat-agentic": "agentic_jsonl"}
        yield str(path), others.get(label, "dag_jsonl")


@pytest.mark.parametrize(("path", "name"), list(examples()), ids=lambda value: Path(value).name)
def test_no_format_takes_another_one_s_file(path: str, name: str) -> None:
    assert detect(path) == name


def test_every_option_says_what_it_is_for() -> None:
    for declared in FORMATS.values():
        assert all(option.help for option in declared.options), declared.name
        assert len({option.name for option in declared.options}) == len(declared.options), declared.name

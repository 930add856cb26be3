"""share_gpt: questions become turns, answers are not sent; what published files lack is left out and noted."""

import json
from pathlib import Path
from typing import Any

import pytest
from workload_files import contents, problems_of, write, write_whole

from llmirage_client.workload.registry import detect, load

EXAMPLE = Path(__file__).parents[3] / "data" / "evalscope" / "share_gpt.jsonl"


def talk(*questions: Any, **extra: Any) -> dict[str, Any]:
    return {"conversation": [{"human": question, "assistant": "ref"} for question in questions], **extra}


def test_each_question_is_a_turn_without_the_space_around_it(tmp_path: Path) -> None:
    workload = load(write(tmp_path, talk("one", " two\n", conversation_id="x"), talk("三")))
    assert workload.format == "share_gpt"
    assert contents(workload) == [[["one"], ["two"]], [["三"]]]
    assert all(session.ends_on_failure and session.mode == "accumulate" for session in workload.sessions.values())


def test_what_published_files_lack_is_left_out_and_noted(tmp_path: Path) -> None:
    rows = [talk("  ", "kept"), talk(), {"note": 1}, {"conversation": [{"assistant": "x"}, {"human": "q"}]}, talk(None, "r")]
    workload = load(write(tmp_path, *rows))
    assert contents(workload) == [[["kept"]], [["q"]], [["r"]]]
    assert workload.notes == (
        "left out 1: blank questions",
        "left out 1: conversations without a question",
        "left out 1: lines without 'conversation'",
        "left out 2: exchanges without a question",
    )


def test_max_turns_and_lengths(tmp_path: Path) -> None:
    path = write(tmp_path, talk("one", "two", "three"), talk("x" * 20, "two"))
    assert contents(load(path, None, {"max_turns": 2, "max_prompt_length": 10})) == [[["one"], ["two"]]]
    assert problems_of(path, min_prompt_length=11, max_prompt_length=10) == [
        "option min_prompt_length: 11 is more than max_prompt_length 10"
    ]


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        ("this is not json", ["invalid JSON: Expecting value at column 1"]),
        ("[1]", ["Input should be a valid dictionary (a JSON object), got an array"]),
        ('"text"', ["Input should be a valid dictionary (a JSON object), got a string"]),
        ({"conversation": None}, ["conversation: Input should be a valid list"]),
        ({"conversation": {"human": "x"}}, ["conversation: Input should be a valid list"]),
        ({"conversation": "x"}, ["conversation: Input should be a valid list"]),
        ({"conversation": ["x"]}, ["conversation.0: Input should be a valid dictionary (a JSON object), got a string"]),
        (
            {"conversation": [{"human": "a"}, None]},
            ["conversation.1: Input should be a valid dictionary (a JSON object), got null"],
        ),
        (talk("a", 3), ["conversation.1.human: Input should be a valid string, got a number"]),
        (
            talk(["a"], {}),
            [
                "conversation.0.human: Input should be a valid string, got an array",
                "conversation.1.human: Input should be a valid string, got an object",
            ],
        ),
        ({"conversation": [{"humans": "x"}]}, ["conversation.0.human: Field required (is it 'humans'?)"]),
        ({"conversation": [{}]}, ["conversation.0.human: Field required"]),
        (
            {"conversations": [{"from": "humann", "value": "x"}, {"from": "human"}]},
            [
                "conversations.0.from: Input should be one of human, user, gpt, assistant, chatgpt, bing, bard, claude, "
                "system, tool, function_call, observation, got 'humann'",
                "conversations.1.value: Field required",
            ],
        ),
        ({"conversatoin": []}, ["conversation: Field required (is it 'conversatoin'?)"]),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_line_and_field(row: Any, problems: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, talk("good"), row)
    assert problems_of(path) == [f"line 2: {problem}" for problem in problems]
    assert contents(load(path, None, {"skip_bad_lines": True})) == [[["good"]]]


def test_all_problems_come_at_once_and_nothing_left_is_a_problem(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, talk(1), "{", talk("x"), talk(2)), "share_gpt")
    assert [problem.split(":")[0] for problem in found] == ["line 1", "line 2", "line 4"]
    (problem,) = problems_of(write(tmp_path, talk(" "), talk()))
    assert problem.startswith("has no conversation that can run; left out 1: blank questions; left out 2: ")


def test_the_name_of_the_data_set_says_what_to_fetch() -> None:
    (problem,) = problems_of("share_gpt_zh_multi_turn")
    assert problem == (
        "no such file; this is the name of a format: fetch common_zh_70k.jsonl or common_en_70k.jsonl from "
        "modelscope.cn/datasets/swift/sharegpt and give its path"
    )


def test_the_example_is_known_by_its_content() -> None:
    assert detect(str(EXAMPLE)) == "share_gpt"
    assert len(load(str(EXAMPLE), "share_gpt_en_multi_turn").roots) == 2


PUBLISHED = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": " q1 "},
            {"from": "gpt", "value": "x"},
            {"from": "human", "value": "q2"},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "only an answer"}]},
    {"id": "c", "conversations": [{"from": "human", "value": "q3"}]},
]


@pytest.mark.parametrize(
    "text",
    [json.dumps(PUBLISHED), json.dumps(PUBLISHED, indent=2), "\n".join(map(json.dumps, PUBLISHED)) + "\n"],
    ids=["one line", "over lines", "JSON lines"],
)
def test_the_published_file_is_read_in_any_layout(text: str, tmp_path: Path) -> None:
    path = write_whole(tmp_path, text)
    workload = load(path)
    assert workload.format == detect(path) == "share_gpt"
    assert contents(workload) == [[["q1"], ["q2"]], [["q3"]]]
    assert workload.notes == ("left out 1: conversations without a question",)
    assert contents(load(path, None, {"max_turns": 1})) == [[["q1"]], [["q3"]]]


def test_problems_of_an_array_have_their_lines(tmp_path: Path) -> None:
    broken = [*PUBLISHED, {"id": "d", "conversations": [{"from": "human", "value": 3}]}]
    (problem,) = problems_of(write_whole(tmp_path, json.dumps(broken, indent=1)))
    line = int(problem.split()[1].rstrip(":"))
    assert json.dumps(broken, indent=1).splitlines()[line - 1].strip() == "{"
    assert problem.endswith("conversations.0.value: Input should be a valid string")
    assert problems_of(write_whole(tmp_path, json.dumps(PUBLISHED)[:-1])) == ["line 1: invalid JSON: the array has no end"]

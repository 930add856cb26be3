"""custom_multi_turn: where turns end, what is sent, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from workload_files import contents, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_shared import tokenizer_loader
from llmirage_shared.prompt_encoder import PromptEncoder

EXAMPLE = Path(__file__).parents[3] / "data" / "evalscope" / "custom_multi_turn.jsonl"


def u(content: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **extra}


def a(content: Any = "x") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


GOOD = [u("one"), a(), u("two")]


def test_a_turn_ends_where_the_assistant_spoke_and_its_words_are_not_kept(tmp_path: Path) -> None:
    workload = load(write(tmp_path, [u("one"), a("never sent"), u("two"), a()], "", [u("three")]))
    assert workload.format == "custom_multi_turn"
    assert workload.roots == ("conversation_1", "conversation_3")
    assert contents(workload) == [[["one"], ["two"]], [["three"]]]
    session = workload.sessions["conversation_3"]
    assert (session.mode, session.line, session.ends_on_failure) == ("accumulate", 3, True)


def test_users_in_a_row_are_one_turn_and_assistants_at_the_ends_or_in_a_row_do_not_matter(tmp_path: Path) -> None:
    workload = load(write(tmp_path, [a(), u("one"), u("more"), a(), a(None), u("two"), a()]))
    assert contents(workload) == [[["one", "more"], ["two"]]]


def test_messages_are_sent_with_all_their_keys(tmp_path: Path) -> None:
    picture = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    workload = load(write(tmp_path, [u("one", name="kim"), a(), u(picture)]))
    first, second = workload.sessions["conversation_1"].turns
    assert first.messages == ({"role": "user", "content": "one", "name": "kim"},)
    assert second.messages == ({"role": "user", "content": picture},)


def test_max_turns_cuts_conversations_short(tmp_path: Path) -> None:
    path = write(tmp_path, [u("1"), a(), u("2"), a(), u("3")], [u("4")])
    assert contents(load(path, None, {"max_turns": "2"})) == [[["1"], ["2"]], [["4"]]]


def test_any_role_sends_what_the_file_has(tmp_path: Path) -> None:
    system, tool = {"role": "system", "content": "s"}, {"role": "tool", "content": None, "tool_call_id": "c"}
    workload = load(write(tmp_path, [system, u("1"), a(), tool], [system], [a()]), None, {"any_role": True})
    assert contents(workload) == [[["s", "1"], [None]], [["s"]]]
    assert workload.notes == ("left out 1: conversations of assistant messages only",)


def test_bad_lines_may_be_left_out(tmp_path: Path) -> None:
    workload = load(write(tmp_path, "{", [u("1")], [], 7), None, {"skip_bad_lines": "true"})
    assert contents(workload) == [[["1"]]]
    (note,) = workload.notes
    assert note.startswith("left out 3 bad lines; the first: line 1: invalid JSON")
    assert len(problems_of(write(tmp_path, [], [a()]), skip_bad_lines=True)) == 2


def test_the_first_user_message_may_have_a_length_to_keep(tmp_path: Path) -> None:
    path = write(tmp_path, [u("four"), a(), u("a much longer one")], [u("sixsix")], [u([{"type": "text"}])])
    workload = load(path, None, {"min_prompt_length": 5, "max_prompt_length": 10})
    assert workload.roots == ("conversation_2", "conversation_3")
    assert workload.notes == ("left out 1: conversations whose first user message is not 5 to 10 characters long",)


def test_a_tokenizers_lengths_are_tokens_with_the_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = tokenizer_loader.load(None)
    monkeypatch.setattr("llmirage_client.workload.conversation_lines.load", lambda _: embedded)
    text = "How warm should a starter be?"
    count = len(PromptEncoder(*embedded).encode_chat([u(text)]))
    assert count > len(embedded[0].encode(text))
    path = write(tmp_path, [u(text)])
    assert load(path, None, {"min_prompt_length": count, "max_prompt_length": count, "tokenizer": "any"}).roots
    (problem,) = problems_of(path, max_prompt_length=count - 1, tokenizer="any")
    assert f"is not 0 to {count - 1} tokens long" in problem


def test_a_tokenizer_that_cannot_be_loaded_is_a_problem(tmp_path: Path) -> None:
    (problem,) = problems_of(write(tmp_path, GOOD), tokenizer=str(tmp_path / "none"))
    assert problem.startswith("option tokenizer: ")


def test_an_offset_starts_later_and_wraps_only_when_more_are_wanted(tmp_path: Path) -> None:
    path = write(tmp_path, [u("1")], [u("2")], [u("3")])
    workload = load(path, None, {"dataset_offset": 2})
    assert contents(workload) == [[["3"]], [["1"]], [["2"]]]
    assert workload.skipped == 2
    assert problems_of(path, dataset_offset=3) == ["option dataset_offset: 3 skips all of the 3 conversations of the file"]


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        ({"role": "user"}, ["a conversation is an array of messages, got an object"]),
        ("7", ["a conversation is an array of messages, got a number"]),
        ("null", ["a conversation is an array of messages, got null"]),
        ([], ["a conversation needs at least one message"]),
        ('[{"role":', ["invalid JSON: Expecting value at column 10"]),
        (["hello"], ["0: Input should be a valid dictionary (a JSON object), got a string"]),
        ([{"content": "x"}], ["0.role: Field required"]),
        ([{"role": "user"}], ["0.content: Field required"]),
        (
            [u("1"), {"rol": "user", "contents": "x"}],
            ["1.role: Field required (is it 'rol'?)", "1.content: Field required (is it 'contents'?)"],
        ),
        ([a()], ["a conversation must contain at least one user message"]),
        (
            [u("1"), {"role": "User", "content": "x"}],
            ["1.role: Input should be 'user' or 'assistant', got 'User' (did you mean 'user'?)"],
        ),
        (
            [{"role": "system", "content": "x"}, u("1")],
            ["0.role: Input should be 'user' or 'assistant', got 'system' (any_role=true sends every role unchanged)"],
        ),
        (
            [{"role": 3, "content": "x"}],
            ["0.role: Input should be 'user' or 'assistant', got a number (any_role=true sends every role unchanged)"],
        ),
        ([u(None)], ["0.content: Input should be a text or a list of parts, got null"]),
        ([u({"text": "x"})], ["0.content: Input should be a text or a list of parts, got an object"]),
        ([u([])], ["0.content: Input should be a text or a list of parts, got an array"]),
        ([u([{"text": "x"}])], ["0.content.0: Input should be an object with a 'type'"]),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_line_and_field(row: Any, problems: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, row)
    assert problems_of(path) == [f"line 2: {problem}" for problem in problems]


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    assert problems_of(write(tmp_path, [a()]), any_role=True) == [
        "has no conversation that can run; left out 1: conversations of assistant messages only"
    ]
    assert problems_of(write(tmp_path, "")) == ["is empty; a workload needs at least one session"]


def test_the_example_is_known_by_its_content() -> None:
    assert detect(str(EXAMPLE)) == "custom_multi_turn"
    assert len(load(str(EXAMPLE)).roots) == 3

"""swe_smith: prepared conversations, and conversations cut from trajectories to given lengths."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import contents, loads_or_is_refused, mutate, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded

DATA = Path(__file__).parents[3] / "data" / "evalscope"
TOKENIZER = embedded()
TEXT = SyntheticText(TOKENIZER, 5)


def u(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def delta(*messages: Any, **extra: Any) -> dict[str, Any]:
    return {"messages": list(messages), "prompt_tokens": 9, **extra}


def prepared(folder: Path, *conversations: Any, indent: int | None = None) -> str:
    document = {"metadata": {"note": "x"}, "conversations": list(conversations)}
    return write(folder, json.dumps(document, indent=indent))


class TestPrepared:
    def test_every_turn_adds_its_messages(self, tmp_path: Path) -> None:
        system = {"role": "system", "content": "s"}
        path = prepared(tmp_path, [delta(system, u("issue")), delta(u("out"))], [delta(u("b"))])
        workload = load(path)
        assert workload.format == "swe_smith"
        assert contents(workload) == [[["s", "issue"], ["out"]], [["b"]]]
        assert all(session.ends_on_failure and session.mode == "accumulate" for session in workload.sessions.values())

    def test_a_routing_id_goes_on_with_the_number_of_the_turn(self, tmp_path: Path) -> None:
        workload = load(prepared(tmp_path, [delta(u("1"), rid="r"), delta(u("2")), delta(u("3"), rid="q")], [delta(u("4"))]))
        first, second = workload.sessions.values()
        assert [turn.extra for turn in first.turns] == [{"rid": "r_t1"}, {"rid": "r_t2"}, {"rid": "q_t3"}]
        assert second.turns[0].extra == {}

    def test_empty_conversations_and_first_turns_are_noted(self, tmp_path: Path) -> None:
        workload = load(prepared(tmp_path, [], [delta(), delta(u("2"))]))
        assert contents(workload) == [[[], ["2"]]]
        assert workload.notes == (
            "left out 1: empty conversations",
            "1 begin with a turn without messages, which most endpoints refuse",
        )

    def test_max_turns_and_the_offset(self, tmp_path: Path) -> None:
        path = prepared(tmp_path, [delta(u("1")), delta(u("2"))], [delta(u("3"))], indent=1)
        workload = load(path, None, {"max_turns": 1, "dataset_offset": 1})
        assert contents(workload) == [[["3"]], [["1"]]]
        assert workload.skipped == 1

    @pytest.mark.parametrize(
        ("document", "problems"),
        [
            ([[delta(u("x"))]], ['line 1: the file must hold an object {"conversations": [...]}, got an array']),
            ({"conversation": []}, ["line 1: conversations: Field required"]),
            ({"conversations": []}, ["line 1: conversations: List should have at least 1 item after validation, not 0"]),
            ({"conversations": {}}, ["line 1: conversations: Input should be a valid list"]),
            ({"conversations": [[]]}, ["conversations: holds no conversation: every one is empty"]),
            ({"conversations": [{"messages": []}]}, ["line 1: conversations.0: Input should be a valid list"]),
            (
                {"conversations": [["x"]]},
                ["line 1: conversations.0.0: Input should be a valid dictionary (a JSON object), got a string"],
            ),
            ({"conversations": [[{}]]}, ["line 1: conversations.0.0.messages: Field required"]),
            (
                {"conversations": [[{"messages": [], "message": 1}]]},
                ["line 1: conversations.0.0.message: Extra inputs are not permitted (did you mean 'messages'?)"],
            ),
            (
                {"conversations": [[delta("x")]]},
                ["line 1: conversations.0.0.messages.0: Input should be a valid dictionary (a JSON object), got a string"],
            ),
            (
                {"conversations": [[delta({"role": "user"})]]},
                ["line 1: conversations.0.0.messages.0.content: Field required"],
            ),
            (
                {"conversations": [[delta({"role": "bot", "content": ""}), delta(u("x"), rid=3)]]},
                [
                    "line 1: conversations.0.0.messages.0.role: Input should be one of system, developer, user, "
                    "assistant, tool, function, got 'bot'",
                    "line 1: conversations.0.1.rid: Input should be a valid string",
                ],
            ),
        ],
    )
    def test_a_bad_file_is_refused_with_all_its_problems(self, document: Any, problems: list[str], tmp_path: Path) -> None:
        assert problems_of(write(tmp_path, document), "swe_smith") == problems

    def test_problems_have_the_line_of_their_turn(self, tmp_path: Path) -> None:
        path = write(tmp_path, '{"conversations": [', '[{"messages": []}],', '[{"messages": []},', ' {"messages": 1}]', "]}")
        assert problems_of(path) == ["line 4: conversations.1.1.messages: Input should be a valid list"]
        assert problems_of(write(tmp_path, '{"conversations": [', "[{]]}"))[0].startswith("line 2: invalid JSON: ")

    @given(st.data())
    def test_a_mutated_file_loads_or_is_refused(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        document = mutate(json.loads((DATA / "swe_smith.json").read_text()), data)
        loads_or_is_refused(write(tmp_path_factory.mktemp("mutant"), document), "swe_smith")


def text(key: int, tokens: int) -> str:
    return TEXT.text(key, tokens)


def trajectory(*messages: tuple[str, Any], as_text: bool = True, **extra: Any) -> dict[str, Any]:
    listed = [{"role": role, "content": content} for role, content in messages]
    return {"traj_id": "t", "messages": json.dumps(listed) if as_text else listed, **extra}


def lengths(workload: Any) -> list[list[list[int]]]:
    """Tokens of each message of each turn of each conversation."""
    return [[[len(TOKENIZER.encode(m)) for m in turn] for turn in turns] for turns in contents(workload)]


BUILD = {"first_turn_length": 30, "subsequent_turn_length": 10, "min_turns": 3, "max_turns": 3, "chars_per_token": 0}


class TestBuilding:
    def test_whole_messages_are_taken_and_the_one_that_exceeds_is_cut_and_its_rest_thrown_away(self, tmp_path: Path) -> None:
        row = trajectory(
            ("system", "left out"),
            ("user", text(1, 20)),
            ("assistant", "left out"),
            ("tool", text(2, 25)),  # 10 of it fill the first turn
            ("tool", text(3, 4)),
            ("user", text(4, 6)),  # fills the second turn exactly
            ("tool", [{"type": "text", "text": text(5, 12)}]),  # 10 of it are the third
            ("tool", text(6, 50)),
        )
        workload = load(write(tmp_path, row), None, BUILD)
        assert lengths(workload) == [[[20, 10], [4, 6], [10]]]
        (turns,) = contents(workload)
        assert turns[0] == [text(1, 20), TOKENIZER.decode(TOKENIZER.encode(text(2, 25))[:10])]
        roles = {m["role"] for s in workload.sessions.values() for t in s.turns for m in t.messages}
        assert roles == {"user"}
        assert workload.roots == ("trajectory_1",)

    def test_a_trajectory_that_ends_within_its_last_turn_is_used(self, tmp_path: Path) -> None:
        rows = [("user", text(1, 30)), ("tool", text(2, 10)), ("tool", text(4, 9))]
        assert lengths(load(write(tmp_path, trajectory(*rows)), None, BUILD)) == [[[30], [10], [9]]]

    def test_a_trajectory_that_ends_before_its_last_turn_is_not_used(self, tmp_path: Path) -> None:
        enough = [("user", text(1, 30)), ("tool", text(2, 10)), ("tool", text(3, 10))]
        short = [enough[0], ("tool", text(4, 9))]
        workload = load(write(tmp_path, trajectory(*short), trajectory(*enough, as_text=False)), None, BUILD)
        assert workload.roots == ("trajectory_2",)
        assert lengths(workload) == [[[30], [10], [10]]]
        assert workload.notes == ("1 instead of 128 conversations: no other trajectory is long enough",)

    def test_short_trajectories_are_passed_over_by_their_characters(self, tmp_path: Path) -> None:
        enough = [("tool", text(key, 40)) for key in range(4)]
        path = write(tmp_path, trajectory(("user", "x" * 99)), trajectory(*enough))
        workload = load(path, None, {**BUILD, "max_turns": 4, "min_turns": 1, "chars_per_token": 2})
        assert workload.notes[0] == (
            "left out 1: trajectories of fewer than 120 characters, too short by 2 characters a token "
            "(option chars_per_token)"
        )

    def test_turns_and_lengths_are_drawn_from_their_ranges(self, tmp_path: Path) -> None:
        rows = [trajectory(*[("tool", text(100 * i + k, 40)) for k in range(8)]) for i in range(40)]
        ranges = {"first_turn_length": [20, 25], "subsequent_turn_length": "3:4", "min_turns": 2, "max_turns": 4}
        conversations = lengths(load(write(tmp_path, *rows), None, {**ranges, "chars_per_token": 0}))
        assert len(conversations) == 40
        assert {len(turns) for turns in conversations} == {2, 3, 4}
        assert {sum(turns[0]) for turns in conversations} == {20, 21, 22, 23, 24, 25}
        assert {sum(turn) for turns in conversations for turn in turns[1:]} == {3, 4}

    def test_the_seed_decides_and_the_number_of_workers_does_not(self, tmp_path: Path) -> None:
        rows = [trajectory(*[("tool", text(100 * i + k, 40)) for k in range(8)]) for i in range(12)]
        path = write(tmp_path, *rows)
        one = load(path, None, {**BUILD, "num_workers": 1, "conversations": 5})
        assert one.sessions == load(path, None, {**BUILD, "num_workers": 3, "conversations": 5}).sessions
        assert one.roots != load(path, None, {**BUILD, "conversations": 5, "seed": 1}).roots
        assert len(one.roots) == 5
        offset = load(path, None, {**BUILD, "conversations": 5, "dataset_offset": 2})
        assert offset.roots[:3] == one.roots[2:]

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            ("{", "invalid JSON: Expecting property name enclosed in double quotes at column 2"),
            ("[]", "Input should be a valid dictionary (a JSON object), got an array"),
            ({"traj_id": "t"}, "messages: Field required"),
            ({"traj_id": "t", "mesages": []}, "messages: Field required (is it 'mesages'?)"),
            (
                {"traj_id": "t", "messages": "[{"},
                "messages: a text here is JSON of a list, but: Expecting property name enclosed in double quotes "
                "at column 3",
            ),
            ({"traj_id": "t", "messages": "{}"}, "messages: Input should be a valid list"),
            ({"traj_id": "t", "messages": None}, "messages: Input should be a valid list"),
            ({"traj_id": "t", "messages": []}, "messages: List should have at least 1 item after validation, not 0"),
            (
                {"traj_id": "t", "messages": [1]},
                "messages.0: Input should be a valid dictionary (a JSON object), got a number",
            ),
            ({"traj_id": "t", "messages": [{"content": "x"}]}, "messages.0.role: Field required"),
            ({"traj_id": "t", "messages": [{"role": 1, "content": "x"}]}, "messages.0.role: Input should be a valid string"),
            (
                {"traj_id": "t", "messages": [{"role": "user", "content": 1}]},
                "messages.0.content: Input should be a text or a list of parts, got a number",
            ),
        ],
    )
    def test_a_bad_line_is_refused_with_line_and_field(self, row: Any, problem: str, tmp_path: Path) -> None:
        good = trajectory(("user", text(1, 60)), ("tool", text(2, 60)), ("tool", text(3, 60)))
        path = write(tmp_path, good, row)
        assert problems_of(path, None, **BUILD) == [f"line 2: {problem}"]
        assert load(path, None, {**BUILD, "skip_bad_lines": True}).roots == ("trajectory_1",)

    def test_lengths_that_no_trajectory_has_are_a_problem(self, tmp_path: Path) -> None:
        (problem,) = problems_of(write(tmp_path, trajectory(("user", "short"))), None)
        assert problem.startswith("gives no conversation of the lengths asked for (option first_turn_length); left out 1: ")
        path = str(DATA / "trajectories.jsonl")
        assert problems_of(path, None, min_turns=3, max_turns=2) == ["option min_turns: 3 is more than max_turns 2"]
        assert problems_of(path, None, first_turn_length="9:3", subsequent_turn_length="1:2:3", num_workers=0) == [
            "option first_turn_length: has its end before its start (9 > 3)",
            "option subsequent_turn_length: Input should be one whole number, or LOW:HIGH",
            "option num_workers: Input should be greater than or equal to 1",
        ]

    @given(st.data())
    def test_a_mutated_file_loads_or_is_refused(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        rows = [mutate(json.loads(line), data) for line in (DATA / "trajectories.jsonl").read_text().splitlines()]
        path = write(tmp_path_factory.mktemp("mutant"), *rows)
        options = {**BUILD, "num_workers": 1, "skip_bad_lines": data.draw(st.booleans())}
        loads_or_is_refused(path, "swe_smith", **options)


@pytest.mark.parametrize("name", ["swe_smith.json", "trajectories.jsonl"])
def test_the_examples_are_known_by_their_content(name: str) -> None:
    assert detect(str(DATA / name)) == "swe_smith"

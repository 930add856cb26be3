"""burst_gpt_trace: a CSV file becomes a schedule of lengths; every fault with its line and column."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import loads_or_is_refused, problems_of, write_whole

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import SyntheticUser

EXAMPLE = Path(__file__).parents[3] / "data" / "aiperf" / "burst_gpt_trace.csv"
HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def rows(*lines: str) -> str:
    return "\n".join((HEADER, *lines))


def test_the_example_is_a_schedule_of_the_requests_that_succeeded() -> None:
    workload = load(str(EXAMPLE))
    assert workload.format == detect(str(EXAMPLE)) == "burst_gpt_trace"
    assert workload.timed
    found = []
    for session in workload.sessions.values():
        (turn,) = session.turns
        assert isinstance(turn.synthetic, SyntheticUser)
        found.append((session.id, session.arrival_s, turn.synthetic.tokens, turn.max_tokens, turn.min_tokens))
    assert found == [
        ("request_2", 0.0, 472, 18, 18),
        ("request_3", pytest.approx(0.1), 3, 7, 7),
        ("request_5", pytest.approx(0.3), 1087, 23, 23),
    ]
    assert workload.notes == (
        "1 of the requests failed when the trace was recorded (0 response tokens): skipped",
        "the file's first timestamp, 5.000 s, is the start of the run",
    )


@pytest.mark.parametrize(
    "text",
    [
        "Response tokens,Timestamp,Request tokens\n7,0.5,3",
        "\ufeffTimestamp , Request tokens,Response tokens\r\n 0.5 ,3, 7\r\n\r\n,,\r\n",
        'Timestamp,Request tokens,"Response tokens","a\nb"\n0.5,3,7,"x\ny"\n',
    ],
)
def test_columns_may_stand_anywhere_and_others_are_not_looked_at(text: str, tmp_path: Path) -> None:
    path = write_whole(tmp_path, text)
    (session,) = load(path, "burst_gpt_trace").sessions.values()
    assert session.turns[0].synthetic is not None
    assert (session.arrival_s, session.turns[0].synthetic.tokens, session.turns[0].max_tokens) == (0.0, 3, 7)


def test_the_rows_may_be_in_any_order(tmp_path: Path) -> None:
    workload = load(write_whole(tmp_path, rows("3,a,1,1,2,x", "1,a,1,1,2,x", "2,a,1,1,2,x")))
    assert workload.roots == ("request_3", "request_4", "request_2")


BAD = [
    (
        "no columns",
        "a,b\n1,2",
        "line 1: the header has no column 'Timestamp', 'Request tokens', 'Response tokens' (it has 'a', 'b')",
    ),
    ("a column less", "Timestamp,Request tokens\n1,2", "line 1: the header has no column 'Response tokens' (it has"),
    ("another case", "timestamp,Request tokens,Response tokens", "line 1: the header has no column 'Timestamp' (it has"),
    ("a header alone", HEADER, "has no requests below its header"),
    ("failures alone", rows("1,a,5,0,5,x"), "has no successful requests"),
    ("no time", rows(",a,5,5,10,x"), "line 2: Timestamp: Field required"),
    ("a short row", rows("1,a,5"), "line 2: Response tokens: Field required"),
    ("time of day", rows("12:30,a,5,5,10,x"), "line 2: Timestamp: Input should be a valid number, unable to parse"),
    ("a negative time", rows("-1,a,5,5,10,x"), "line 2: Timestamp: Input should be greater than or equal to 0"),
    ("no finite time", rows("nan,a,5,5,10,x"), "line 2: Timestamp: Input should be a finite number"),
    ("half a token", rows("1,a,5.5,5,10,x"), "line 2: Request tokens: Input should be a valid integer, unable to parse"),
    ("an empty prompt", rows("1,a,0,5,5,x"), "line 2: Request tokens: Input should be greater than or equal to 1"),
    ("a negative reply", rows("1,a,5,-5,5,x"), "line 2: Response tokens: Input should be greater than or equal to 1"),
    ("words", rows("1,a,five,5,5,x"), "line 2: Request tokens: Input should be a valid integer, unable to parse"),
    ("a long cell", rows("1," + "a" * 140_000 + ",5,5,5,x"), "line 2: invalid CSV: field larger than field limit"),
]


@pytest.mark.parametrize(("text", "problem"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_a_bad_file_is_refused_with_its_problem(text: str, problem: str, tmp_path: Path) -> None:
    found = problems_of(write_whole(tmp_path, text), "burst_gpt_trace")
    assert found[0].startswith(problem)
    assert len(found) == 1


def test_rows_that_cannot_be_read_are_skipped_while_others_can(tmp_path: Path) -> None:
    workload = load(write_whole(tmp_path, rows("5,a,40,0,40,x", "x,a,40,4,44,x", "5.3,a,,4,44,x", "5.5,a,30,3,33,x")))
    assert workload.roots == ("request_5",)
    assert workload.notes[:2] == (
        "1 of the requests failed when the trace was recorded (0 response tokens): skipped",
        "rows that cannot be read: 2, skipped; the first: line 3: Timestamp: Input should be a valid number, "
        "unable to parse string as a number",
    )
    in_sessions = "Session ID,Timestamp,Request tokens,Response tokens\ns,1,5,5\nt,x,5,5\ns,2,x,5\ns,3,20,5"
    sessions = load(write_whole(tmp_path, in_sessions), "burst_gpt_trace").sessions
    assert {name: len(session.turns) for name, session in sessions.items()} == {"s": 2}


def test_all_problems_are_told_and_text_must_be_utf8(tmp_path: Path) -> None:
    path = write_whole(tmp_path, rows("x,a,0,5,5,x", "1,a,,,10,x"))
    assert [problem.split(": ")[:2] for problem in problems_of(path)] == [
        ["line 2", "Timestamp"],
        ["line 2", "Request tokens"],
        ["line 3", "Request tokens"],
        ["line 3", "Response tokens"],
    ]
    assert problems_of(write_whole(tmp_path, HEADER.encode() + b"\n1,\xff,5,5,10,x"), "burst_gpt_trace") == [
        "line 2: not UTF-8 text: byte 0xff"
    ]


def test_a_csv_file_of_another_kind_is_not_known(tmp_path: Path) -> None:
    (problem,) = problems_of(write_whole(tmp_path, "time,tokens\n1,2"))
    assert "burst_gpt_trace needs a header with the columns 'Timestamp', 'Request tokens' and 'Response tokens'" in problem


CELLS = st.sampled_from(["1", "0", "-1", "1e3", "nan", "", '"', "x", "1.5", "9" * 5000, "\0", "\r"]) | st.text(max_size=3)


@given(st.lists(st.lists(CELLS, max_size=7).map(",".join), max_size=4), st.booleans())
def test_any_text_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, lines: list[str], with_header: bool) -> None:
    text = "\n".join([HEADER, *lines] if with_header else lines)
    path = write_whole(tmp_path_factory.mktemp("csv"), text.encode("utf-8", "surrogatepass"))
    loads_or_is_refused(path, "burst_gpt_trace")

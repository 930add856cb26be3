"""random_pool: draws with replacement from a file or from each file of a directory; every fault with its place."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from workload_files import assert_refused, contents, problems_of, write

from llmirage_client.workload.registry import detect, load

DATA = Path(__file__).parents[3] / "data" / "aiperf"
FILE, DIRECTORY = DATA / "random_pool.jsonl", DATA / "random_pool"


def drawn(path: str, **options: Any) -> list[Any]:
    """The content of each request, in order."""
    turns = contents(load(path, "random_pool", options))
    assert all(len(session) == 1 and len(session[0]) == 1 for session in turns)
    return [session[0][0] for session in turns]


def test_a_hundred_requests_are_drawn_unless_the_run_says_how_many(tmp_path: Path) -> None:
    path = write(tmp_path, {"text": "a"}, {"text": "b"})
    assert len(drawn(path)) == 100
    assert len(drawn(path, conversations=3)) == 3
    offered = load(path, "random_pool", offered={"conversations": 7, "seed": None, "tokenizer": "unused"})
    assert len(offered.roots) == 7
    assert offered.roots[:2] == ("session_000000", "session_000001")
    assert not offered.timed


def test_draws_are_even_with_replacement_and_go_by_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, *({"text": str(i)} for i in range(4)))
    counts = Counter(drawn(path, conversations=4000))
    assert counts.keys() == {"0", "1", "2", "3"}
    assert all(800 < count < 1200 for count in counts.values())
    assert drawn(path, seed=5) == drawn(path, seed=5) != drawn(path, seed=-6)


def test_a_request_from_a_directory_has_an_entry_of_each_file() -> None:
    workload = load(str(DIRECTORY), None, {"conversations": 200})
    assert workload.format == detect(str(DIRECTORY)) == "random_pool"
    pairs = {tuple(part["text"] for part in session[0][0]) for session in contents(workload)}
    cats = ["I am a cat.", "I am a dog."]
    assert pairs == {(cat, ask) for cat in cats for ask in ("Who are you?", "Where do you live?", "What do you eat?")}


def test_media_of_all_pools_are_put_together_by_kind(tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    pools.mkdir()
    (pools / "a.jsonl").write_text('{"image": "https://a/1.png"}\n')
    (pools / "b.jsonl").write_text('\n{"text": "b", "image": "https://a/2.png"}\n')
    (pools / ".hidden").write_text("no pool")
    (content,) = drawn(str(pools), conversations=1)
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    assert [part["image_url"]["url"] for part in content[1:]] == ["https://a/1.png", "https://a/2.png"]


def test_a_file_is_known_by_its_type_only(tmp_path: Path) -> None:
    assert detect(str(FILE)) == "random_pool"
    assert detect(write(tmp_path, {"text": "a"})) == "single_turn"
    assert len(load(str(FILE), None, {"conversations": 5}).roots) == 5


def test_the_size_of_the_draw_is_told() -> None:
    (note,) = load(str(DIRECTORY), None, {"conversations": 5, "seed": 9}).notes
    assert note.startswith("5 requests are drawn from 2 x 3 entries by seed 9")


NO_ORDER = "is not for random_pool: its entries have no order, times or sessions (see single_turn)"
BAD: list[tuple[Any, ...]] = [
    ({}, "Value error, At least one modality"),
    ({"text": ""}, "Value error, At least one modality"),
    ({"text": ["a"]}, "text: Input should be a valid string"),
    ({"text": "a", "texts": ["b"]}, "Value error, text and texts cannot be set together"),
    ({"video": "https://a/v", "videos": ["https://a/w"]}, "Value error, video and videos cannot be set together"),
    ({"text": "a", "timestamp": 0}, f"timestamp: {NO_ORDER}"),
    ({"text": "a", "delay": 5}, f"delay: {NO_ORDER}"),
    ({"text": "a", "session_id": "s"}, f"session_id: {NO_ORDER}"),
    ({"text": "a", "role": "user"}, f"role: {NO_ORDER}"),
    ({"text": "a", "type": "single_turn"}, "type: Input should be 'random_pool'"),
    ({"text": "a", "imagess": []}, "imagess: is not a key of this format (did you mean 'images'?)"),
    ({"image": "none.png"}, "image: no such file: 'none.png'"),
    ({"texts": [{"contents": "a"}]}, "texts.0.contents: Input should be a valid list"),
    (5, "Input should be a valid dictionary (a JSON object), got a number"),
    ("text: a", "invalid JSON: Expecting value at column 1"),
]


@pytest.mark.parametrize(("row", "problems"), [(row, problems) for row, *problems in BAD])
def test_a_bad_row_is_refused_with_its_problems(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert_refused(tmp_path, "random_pool", row, problems)


def test_problems_of_a_directory_name_the_file(tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    pools.mkdir()
    assert problems_of(str(pools), "random_pool") == ["is a directory without any file; each file of it is a pool"]
    (pools / "a").write_text('{"text": "a"}\n{"txt": 1}\n')
    (pools / "b").write_text("")
    assert [problem[:40] for problem in problems_of(str(pools), "random_pool")] == [
        "a: line 2: txt: is not a key of this for",
        "a: line 2: Value error, At least one mod",
        "b: is empty; a workload needs at least o",
    ]
    (found,) = problems_of(str(pools))
    assert found.startswith("is a directory, and its files are not those of a format that may be one (")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"conversations": 0}, "option conversations: Input should be greater than or equal to 1"),
        ({"seed": "x"}, "option seed: Input should be a valid integer, unable to parse string as an integer"),
        (
            {"pool": 1},
            "option pool: random_pool has no such option (it has conversations, seed, batch_size_text, batch_size_image, "
            "batch_size_audio, batch_size_video, dataset_offset)",
        ),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], problem: str) -> None:
    assert problems_of(str(FILE), "random_pool", **options) == [problem]


def test_batches_take_lines_apart_and_draw_so_many_of_each_kind(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "image": f"https://a/{i}.png"} for i in range(20)]
    path = write(tmp_path, *rows)
    requests = drawn(path, conversations=50, batch_size_text=2, batch_size_image=3)
    kinds = {tuple(part["type"] for part in request) for request in requests}
    assert kinds == {("text", "text", "image_url", "image_url", "image_url")}
    assert len({part["text"] for request in requests for part in request if part["type"] == "text"}) == 20
    assert requests == drawn(path, conversations=50, batch_size_text=2, batch_size_image=3)


def test_a_batch_of_none_leaves_a_kind_out_and_a_pool_may_be_smaller_than_its_batch(tmp_path: Path) -> None:
    path = write(tmp_path, {"text": "a", "image": "https://a/1.png"})
    assert drawn(path, conversations=1, batch_size_image=0) == ["a"]
    (content,) = drawn(path, conversations=1, batch_size_image=0, batch_size_text=3)
    assert [part["text"] for part in content] == ["a", "a", "a"]
    (content,) = drawn(path, conversations=1, batch_size_audio=4, batch_size_text=0)
    assert [part["type"] for part in content] == ["image_url"]


def test_batches_of_a_directory_draw_from_all_its_files() -> None:
    requests = drawn(str(DIRECTORY), conversations=200, batch_size_text=2)
    texts = {part["text"] for request in requests for part in request}
    assert texts >= {"I am a cat.", "Where do you live?"}
    assert all(len(request) == 2 for request in requests)

"""The embedded tokenizer as a folder: other libraries read the same ids and the same prompts from it."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.commands.workload_files import tokenizer as command
from llmirage_shared.prompt_encoder import END_OF_TURN, PAD, EmbeddedTemplate, PromptEncoder
from llmirage_shared.tokenizer_loader import embedded, load

TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Où?", "parameters": {"type": "object"}}},
    {"type": "custom", "custom": {"name": "patch"}},
]
texts = st.text(max_size=12)
_function = st.fixed_dictionaries(
    {"name": st.just("look"), "arguments": st.sampled_from(['{"at": 1}', "", {"at": [1, "é"]}])}
)
_calls = st.one_of(
    st.fixed_dictionaries({"id": st.just("c"), "type": st.just("function"), "function": _function}),
    st.just({"id": "d", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}),
)
_parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts}),
    st.just({"type": "file", "file": {"file_id": "f"}}),
    st.just({"type": "tool_reference", "tool_name": "look"}),
    texts,
)
_contents = st.one_of(texts, st.none(), st.lists(_parts, max_size=3))
_messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "tool", "function", "critic"]), "content": _contents},
        optional={"name": st.sampled_from(["", "ann"])},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": _contents},
        optional={
            "tool_calls": st.lists(_calls, max_size=2),
            "refusal": st.sampled_from([None, "No."]),
            "function_call": _function,
        },
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{folder}: tokenizer.json, tokenizer_config.json\n"
    return folder


@pytest.fixture(scope="module")
def auto(folder: Path) -> Any:
    from transformers import AutoTokenizer  # here, because it takes seconds

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@given(messages=st.lists(_messages, min_size=1, max_size=4), tools=st.sampled_from([None, TOOLS]), reply=st.booleans())
def test_its_template_writes_what_the_server_writes(auto: Any, messages: list[Any], tools: Any, reply: bool) -> None:
    rendered = auto.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=reply)
    assert rendered == EmbeddedTemplate().render(messages, tools, "reply" if reply else "message")


@given(st.text(max_size=40))
def test_its_ids_are_the_servers(auto: Any, text: str) -> None:
    ids = embedded().encode(text).tolist()
    assert auto.encode(text) == auto.encode(text, add_special_tokens=False) == ids
    assert auto.decode(ids) == text


def test_its_special_tokens(auto: Any) -> None:
    assert (auto.eos_token, auto.pad_token, auto.bos_token) == (END_OF_TURN, PAD, None)
    assert auto.decode(auto.encode("<|user|>Hi<|end_of_turn|>"), skip_special_tokens=True) == "Hi"
    assert len(auto) == embedded().vocab_size


def test_a_server_with_the_folder_counts_as_one_without(folder: Path) -> None:
    read = PromptEncoder(*load(str(folder)))
    messages = [{"role": "user", "content": "How far is it?"}, {"role": "assistant", "content": "Ten."}]
    assert read.tokenizer.end_id == embedded().end_id
    assert read.tokenizer.segment_wise
    assert (
        read.encode(read.render(messages, TOOLS)).tolist()
        == embedded().encode(EmbeddedTemplate().render(messages, TOOLS)).tolist()
    )


def test_written_again_it_is_the_same_and_another_tokenizer_is_kept(tmp_path: Path) -> None:
    assert CliRunner().invoke(command, [str(tmp_path)]).exit_code == 0
    before = (tmp_path / "tokenizer.json").read_bytes()
    assert CliRunner().invoke(command, [str(tmp_path)]).exit_code == 0
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    (tmp_path / "tokenizer_config.json").write_text("{}", "utf-8")
    refused = CliRunner().invoke(command, [str(tmp_path)])
    assert refused.exit_code == 2
    assert (
        refused.stderr
        == f"llmirage tokenizer: {tmp_path}/tokenizer_config.json is of another tokenizer; name another folder\n"
    )
    assert (tmp_path / "tokenizer_config.json").read_text("utf-8") == "{}"


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    refused = CliRunner().invoke(command, [str(tmp_path / "file")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "cannot be written: File exists" in refused.stderr

"""Tokenizers from folders: encoded as they encode themselves, with their own template, refused in one sentence."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from llmirage_shared import synthetic_text
from llmirage_shared.prompt_encoder import ChatTemplateError, PlainTemplate, PromptEncoder
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import encodes_by_segments, load
from llmirage_shared.tokens import Tokenizer, TokenizerError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools\n{% endif %}"
    "{% if messages[-1].role == 'refused' %}{{ raise_exception('unknown role refused') }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level(*special: AddedToken) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator([*synthetic_text.OPENINGS, *synthetic_text.FOLLOWING], trainer)
    backend.add_special_tokens(list(special) or [AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return backend


def save(folder: Path, backend: Backend, **config: object) -> str:
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 100_000, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def chatml_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("chatml"), byte_level(), eos_token="<|endoftext|>", chat_template=CHATML)


@pytest.fixture(scope="module")
def chatml(chatml_folder: str) -> PromptEncoder:
    return PromptEncoder(*load(chatml_folder))


def test_a_folder_brings_its_vocabulary_and_its_template(chatml: PromptEncoder, chatml_folder: str) -> None:
    assert chatml.tokenizer.name == chatml_folder
    assert chatml.tokenizer.segment_wise
    assert set(chatml.tokenizer.special_tokens) == set(SPECIAL)
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert (
        chatml.render(messages)
        == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_token_that_ends_a_turn_is_the_templates(chatml: PromptEncoder) -> None:
    assert chatml.tokenizer.end_id == chatml.tokenizer.special_tokens["<|im_end|>"]


def test_tool_calls_reach_the_template_with_parsed_arguments(chatml: PromptEncoder) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    rendered = chatml.render([{"role": "assistant", "content": None, "tool_calls": [call]}], [{"type": "function"}])
    assert '<|im_start|>assistant\n<call>look {"at": 1}<|im_end|>\n1 tools\n' in rendered


def test_what_the_template_refuses_is_said_in_its_words(chatml: PromptEncoder) -> None:
    with pytest.raises(ChatTemplateError, match="unknown role refused"):
        chatml.render([{"role": "refused", "content": "x"}])


odd_text = st.lists(
    st.one_of(st.text(max_size=10), st.sampled_from([*SPECIAL, " ", "\n", "  x", "<|im", "you"])), max_size=8
).map("".join)


@given(contents=st.lists(odd_text, max_size=5))
def test_conversations_are_encoded_as_whole_texts(chatml: PromptEncoder, contents: list[str]) -> None:
    text = chatml.render([{"role": "user", "content": content} for content in contents] or [{"role": "user"}])
    for _ in range(2):
        assert chatml.encode(text).tolist() == chatml.tokenizer.encode(text).tolist()
    assert chatml.tokenizer.decode(chatml.encode(text)) == text


def test_synthetic_text_counts_in_a_foreign_vocabulary(chatml: PromptEncoder) -> None:
    text = SyntheticText(chatml.tokenizer, seed=1)
    for key in range(10):
        ids = text.ids(key, 120)
        assert chatml.tokenizer.encode(text.text(key, 120)).tolist() == ids.tolist()


def test_a_folder_without_template_and_end_token_still_works(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel(vocab={"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer, template = load(save(tmp_path, backend))
    assert isinstance(template, PlainTemplate)
    assert tokenizer.encode("one two").tolist() == [1, 2]
    assert tokenizer.end_id == tokenizer.vocab_size == 3
    assert tokenizer.pieces([1, tokenizer.end_id])[-1] == ""


def with_special(**flags: bool) -> Backend:
    return byte_level(AddedToken("<|x|>", normalized=False, special=True, **flags))


def with_pre_tokenizer(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Backend:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizer
    return backend


def with_normalizer(normalizer: normalizers.Normalizer) -> Backend:
    backend = byte_level()
    backend.normalizer = normalizer
    return backend


@pytest.mark.parametrize(
    ("backend", "by_segments"),
    [
        (byte_level(), True),
        (with_normalizer(normalizers.NFC()), True),
        (with_normalizer(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])), True),
        (with_pre_tokenizer(pre_tokenizers.Metaspace(prepend_scheme="always")), True),
        (with_pre_tokenizer(pre_tokenizers.Metaspace(prepend_scheme="first")), False),
        (with_pre_tokenizer(pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first")])), False),
        (with_special(lstrip=True), False),
        (with_special(rstrip=True), False),
        (with_special(single_word=True), False),
    ],
)
@given(text=odd_text)
def test_segments_are_used_only_where_they_give_the_same_ids(backend: Backend, by_segments: bool, text: str) -> None:
    assert encodes_by_segments(backend) == by_segments
    tokenizer = Tokenizer(backend, "test", None, segment_wise=by_segments)
    text += "<|x|> <|im_end|> end"
    assert PromptEncoder(tokenizer, PlainTemplate("")).encode(text).tolist() == tokenizer.encode(text).tolist()


def test_pieces_of_a_decoder_that_joins_words_add_up(tmp_path: Path) -> None:
    backend = Backend(
        models.Unigram([("<unk>", -9.0), ("▁the", -1.0), ("▁c", -2.0), ("at", -2.0), ("s", -3.0), ("é", -4.0)], unk_id=0)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend, "pieces", None, segment_wise=False)
    ids = tokenizer.encode("the cats the caté")
    assert tokenizer.pieces(ids) == ["the", " c", "at", "s", " the", " c", "at", "é"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent", "there is no such folder$"),
        ("empty", "the folder holds no tokenizer.json$"),
        ("broken", "transformers cannot load the folder: "),
        ("file", "is a file; give the folder that holds tokenizer.json$"),
    ],
)
def test_a_path_that_cannot_be_loaded_is_one_clear_message(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    if name in ("empty", "broken"):
        path.mkdir()
    if name == "broken":
        (path / "tokenizer.json").write_text("{", "utf-8")
    if name == "file":
        path.write_text("{}", "utf-8")
    with pytest.raises(TokenizerError, match=f"^tokenizer .*{name}: {said}") as caught:
        load(str(path))
    assert "\n" not in str(caught.value)


def test_a_hub_name_without_a_network_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TokenizerError, match=r"^tokenizer no-one/nothing: there is no such folder, .* cannot be reached"):
        load("no-one/nothing")

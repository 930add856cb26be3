"""What replies say: exact lengths, stops, the same words for the same request, and tokens that re-tokenize."""

import subprocess
import sys
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.replies.compose import EchoReplies, ProseReplies, make_reply_source
from llmirage_server.replies.draft import conversation_key
from llmirage_server.replies.lengths import ReplyLengths
from llmirage_server.replies.reply import Reply, ReplyRequest
from llmirage_server.replies.structured.budget import BRIEF_TOKENS, FULL, Budget, BudgetError, limited
from llmirage_shared.tokenizer_loader import embedded

TOKENIZER = embedded()
PROSE = ProseReplies(TOKENIZER, seed=1)
EXACT = ProseReplies(TOKENIZER, seed=1, exact_length=True)
ECHO = EchoReplies(TOKENIZER)


def request(prompt: str = "How are you?", **fields: object) -> ReplyRequest:
    plain = ReplyRequest(prompt_ids=TOKENIZER.encode(prompt), last_user_text=prompt, max_tokens=None, limit_tokens=10_000)
    return replace(plain, **fields)  # type: ignore[arg-type]


def content_ids(reply: Reply) -> list[int]:
    ids: list[int] = reply.ids.tolist()
    return ids[:-1] if ids[-1] == TOKENIZER.end_id else ids


prompts = st.text(max_size=20)
counts = st.integers(1, 300)


@given(prompts, counts, st.none() | st.integers(), st.integers(0, 3))
def test_exact_lengths_are_max_tokens_and_retokenize(prompt: str, max_tokens: int, seed: int | None, choice: int) -> None:
    wanted = request(prompt, max_tokens=max_tokens, seed=seed, choice=choice)
    reply = EXACT.reply(wanted)
    assert len(reply.ids) == len(reply.pieces) == max_tokens
    assert PROSE.reply(replace(wanted, ignore_eos=True)).text == reply.text
    assert reply.finish_reason == "length"
    assert TOKENIZER.encode(reply.text).tolist() == reply.ids.tolist()
    assert TOKENIZER.pieces(reply.ids) == list(reply.pieces)


@given(prompts, st.none() | counts, st.integers(1, 400), st.integers(0, 200))
def test_texts_are_told_with_their_ids(prompt: str, max_tokens: int | None, limit: int, min_tokens: int) -> None:
    told: list[tuple[str, list[int]]] = []
    prose = ProseReplies(TOKENIZER, seed=1, remember=lambda text, ids: told.append((text, ids.tolist())))
    reply = prose.reply(request(prompt, max_tokens=max_tokens, limit_tokens=limit, min_tokens=min_tokens))
    assert told == [(reply.text, TOKENIZER.encode(reply.text).tolist())]


@given(prompts, st.none() | counts, st.integers(1, 400), st.integers(0, 200))
def test_a_natural_stop_is_sentence_and_end_token(prompt: str, max_tokens: int | None, limit: int, min_tokens: int) -> None:
    reply = PROSE.reply(request(prompt, max_tokens=max_tokens, limit_tokens=limit, min_tokens=min_tokens))
    most = min(limit, max_tokens or limit)
    assert len(reply.ids) == len(reply.pieces) <= most
    assert TOKENIZER.encode(reply.text).tolist() == content_ids(reply)
    if reply.finish_reason == "stop":
        assert reply.ids[-1] == TOKENIZER.end_id
        assert reply.pieces[-1] == ""
        assert reply.text.endswith(".")
        assert len(content_ids(reply)) >= min_tokens
    else:
        assert len(reply.ids) == most
        assert reply.ids[-1] != TOKENIZER.end_id


ORDINARY = "Explain in your own words what the harbour of question {} is for, and who works there"


@pytest.mark.parametrize("max_tokens", [None, 9_000])
def test_the_model_stops_by_itself_whatever_max_tokens_allows(max_tokens: int | None) -> None:
    replies = [PROSE.reply(request(ORDINARY.format(i), max_tokens=max_tokens)) for i in range(200)]
    assert all(reply.finish_reason == "stop" for reply in replies)
    lengths = [len(reply.ids) for reply in replies]
    assert 130 < median(lengths) < 200
    assert len(set(lengths)) > 100


def lengths_of(prompt: str, **fields: object) -> list[int]:
    return [len(PROSE.reply(request(prompt, seed=seed, **fields)).ids) for seed in range(100)]


@pytest.mark.parametrize(
    ("prompt", "least", "most"),
    [
        ("What is 2+2?", 20, 70),
        ("Hello", 20, 70),
        ("<system-reminder>Long texts of a harness. " * 20 + "</system-reminder>\nThanks!", 20, 70),
        ("Why is the sky blue?", 130, 230),
        ("Tell me a story", 130, 230),
        ("Generate a title for this conversation:\n" + "We talked about harbours and boats. " * 30, 1, 30),
        ("Summarize it in at most 30 words. " + "The harbour is quiet in the morning. " * 30, 10, 60),
        ("Write a 600-word story about a harbour and the people there", 840, 870),
        ("Describe the harbour in the morning in exactly 2 paragraphs", 160, 190),
        ("Write a story about it, of between 1,000 and 2,000 boats", 130, 230),
        ("你好，请介绍一下这个港口的历史，越详细越好，谢谢你。这里有很多船", 130, 230),
    ],
)
def test_the_length_suits_what_is_asked_for(prompt: str, least: int, most: int) -> None:
    assert least <= median(lengths_of(prompt)) <= most


def test_the_instructions_may_ask_for_a_title() -> None:
    system = {"role": "system", "content": "You are a title generator. You output ONLY a thread title. Nothing else."}
    user = {"role": "user", "content": ORDINARY}
    assert max(lengths_of(ORDINARY, messages=(system, user))) <= 40
    assert median(lengths_of(ORDINARY, messages=(system | {"content": "You are a helpful assistant."}, user))) > 100


CUT = "Output token limit hit. Resume directly, no apology, no recap of what you were doing. Pick up mid-thought."


@pytest.mark.parametrize("go_on", ["Continue", "please go on", CUT, None])
@pytest.mark.parametrize("max_tokens", [10, 50, 200])
def test_a_loop_that_goes_on_after_each_cut_ends(go_on: str | None, max_tokens: int) -> None:
    """go_on: what the user says then; None: the client gives the assistant's words back as the beginning of the answer."""
    rounds = []
    for seed in range(30):
        messages = [{"role": "user", "content": ORDINARY}]
        while True:
            said = next(each["content"] for each in reversed(messages) if each["role"] == "user")
            prompt = "".join(message["content"] for message in messages)
            reply = PROSE.reply(
                request(prompt, last_user_text=said, messages=tuple(messages), max_tokens=max_tokens, seed=seed)
            )
            messages.append({"role": "assistant", "content": reply.text})
            if reply.finish_reason == "stop":
                break
            if go_on is not None:
                messages.append({"role": "user", "content": go_on})
        rounds.append(sum(message["role"] == "assistant" for message in messages))
    assert median(rounds) <= 1 + 200 / max_tokens
    assert max(rounds) <= 2 + 800 / max_tokens


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 700}, {"max_tokens": None, "limit_tokens": 700}, {"max_tokens": 900, "limit_tokens": 700}]
)
def test_ignore_eos_goes_on_to_the_limit(fields: dict[str, int | None]) -> None:
    reply = PROSE.reply(request(ignore_eos=True, **fields))
    assert len(reply.ids) == 700
    assert reply.finish_reason == "length"
    assert TOKENIZER.end_id not in reply.ids


@given(prompts, counts, counts, st.integers(0, 5))
def test_a_smaller_max_tokens_gives_a_prefix(prompt: str, one: int, other: int, seed: int) -> None:
    short, long = sorted((one, other))
    first = EXACT.reply(request(prompt, max_tokens=short, seed=seed))
    second = EXACT.reply(request(prompt, max_tokens=long, seed=seed))
    assert second.ids[:short].tolist() == first.ids.tolist()
    free = PROSE.reply(request(prompt, seed=seed))
    common = min(short, len(free.ids) - 1)
    assert free.ids[:common].tolist() == first.ids[:common].tolist()


def test_replies_differ_by_conversation_seed_choice_and_source_seed() -> None:
    base = request(max_tokens=60, seed=1)
    variants = [
        base,
        replace(base, seed=2),
        replace(base, seed=None),
        replace(base, choice=1),
        request("Else?", max_tokens=60, seed=1),
    ]
    texts = [PROSE.reply(variant).text for variant in variants] + [ProseReplies(TOKENIZER, seed=2).reply(base).text]
    assert len(set(texts)) == len(texts)
    assert PROSE.reply(base).text == ProseReplies(TOKENIZER, seed=1).reply(base).text


def test_conversations_told_apart_get_different_replies_unless_a_seed_is_given() -> None:
    def text(**fields: object) -> str:
        return PROSE.reply(request(max_tokens=30, **fields)).text

    assert text(conversation="a") == text(conversation="a")
    assert len({text(), text(conversation="a"), text(conversation="b")}) == 3
    assert text(conversation="a", seed=5) == text(conversation="b", seed=5) == text(seed=5)


def test_one_changed_token_changes_the_conversation() -> None:
    ids = np.zeros(5000, dtype=np.int32)
    keys = {conversation_key(request(prompt_ids=ids))}
    for at in range(0, 5000, 97):
        changed = ids.copy()
        changed[at] = 1
        keys.add(conversation_key(request(prompt_ids=changed)))
    keys.add(conversation_key(request(prompt_ids=ids[:-1])))
    assert len(keys) == len(range(0, 5000, 97)) + 2


def test_another_process_replies_the_same() -> None:
    program = (
        "from llmirage_shared.tokenizer_loader import embedded;"
        "from llmirage_server.replies.compose import make_reply_source;"
        "from llmirage_server.replies.reply import ReplyRequest; t = embedded();"
        "print(make_reply_source('prose', t, 1).reply(ReplyRequest(t.encode('Hi'), 'Hi', 50, 1000, seed=3)).text)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == PROSE.reply(request("Hi", max_tokens=50, seed=3)).text + "\n"


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 12), st.booleans())
def test_the_text_ends_before_a_stop_string(seed: int, start: int, length: int, include: bool) -> None:
    free = PROSE.reply(request(max_tokens=100, seed=seed))
    stop = free.text[start : start + length]
    reply = PROSE.reply(request(max_tokens=100, seed=seed, stop=("never in it", stop), include_stop_str=include))
    at = free.text.index(stop)
    assert reply.text == free.text[: at + len(stop) if include else at]
    assert reply.finish_reason == "stop"
    assert reply.stop_reason == stop
    assert len(reply.pieces) == len(reply.ids)
    assert free.ids[: len(reply.ids)].tolist() == reply.ids.tolist()
    # Tokens are counted up to the one that completes the stop string.
    assert len("".join(free.pieces[: len(reply.ids) - 1])) < at + len(stop) <= len("".join(free.pieces[: len(reply.ids)]))


def test_the_first_of_several_stop_strings_wins() -> None:
    text = "one two three four five"
    reply = ECHO.reply(request(text, stop=("four", "two", "three")))
    assert (reply.text, reply.stop_reason) == ("one ", "two")
    reply = ECHO.reply(request(text, stop=("wo", "two", "two three")))
    assert (reply.text, reply.stop_reason) == ("one ", "two")


def test_stop_strings_do_not_count_within_min_tokens() -> None:
    text = "one two one two one two"
    assert len(TOKENIZER.encode(text)) == 6
    assert ECHO.reply(request(text, stop=("two",))).text == "one "
    assert ECHO.reply(request(text, stop=("two",), min_tokens=1)).text == "one "
    assert ECHO.reply(request(text, stop=("two",), min_tokens=2)).text == "one two one "
    assert ECHO.reply(request(text, stop=("two",), min_tokens=3)).text == "one two one "


any_text = st.text(max_size=30) | st.sampled_from(["", "<|user|>", "a<|end_of_turn|>b", "你好 😀", "\ud800", " \n"])


@given(any_text)
def test_echo_repeats_any_text_and_stops(text: str) -> None:
    reply = ECHO.reply(request("", last_user_text=text))
    assert reply.text == TOKENIZER.decode(TOKENIZER.encode_ordinary(text))
    assert reply.text.replace("�", "") == text.replace("\ud800", "").replace("�", "") or "\ud800" in text
    assert reply.ids[-1] == TOKENIZER.end_id
    assert reply.finish_reason == "stop"
    assert len(reply.ids) == len(reply.pieces)


@given(any_text, st.integers(1, 50))
def test_echo_with_ignore_eos_repeats_until_max_tokens(text: str, max_tokens: int) -> None:
    wanted = request("", last_user_text=text, max_tokens=max_tokens)
    reply = ECHO.reply(replace(wanted, ignore_eos=True))
    assert EchoReplies(TOKENIZER, exact_length=True).reply(wanted).text == reply.text
    assert len(reply.ids) == len(reply.pieces) == max_tokens
    assert reply.finish_reason == "length"
    once = TOKENIZER.decode(TOKENIZER.encode_ordinary(text)) or "."
    assert (once * max_tokens).startswith(reply.text)


def test_echo_cut_inside_a_character_shows_whole_characters_only() -> None:
    whole = ECHO.reply(request("go 🦄"))
    for max_tokens in range(1, len(whole.ids)):
        cut = ECHO.reply(request("go 🦄", max_tokens=max_tokens))
        assert cut.finish_reason == "length"
        assert whole.text.startswith(cut.text)
        assert cut.ids.tolist() == whole.ids[:max_tokens].tolist()


def test_echo_of_the_text_and_no_more_stops_although_more_is_allowed() -> None:
    assert ECHO.reply(request("one two", max_tokens=50)).finish_reason == "stop"
    assert ECHO.reply(request("one two", max_tokens=3)).finish_reason == "stop"
    assert ECHO.reply(request("one two", max_tokens=2)).finish_reason == "length"
    assert ECHO.reply(request("one two", min_tokens=4)).text == "one twoone two"


def test_lengths_are_lognormal() -> None:
    lengths = ReplyLengths(median_tokens=100, sigma=0.5)
    quantile = 2**64
    assert lengths.tokens(quantile // 2) == 100
    assert lengths.tokens(int(0.8413447 * quantile)) == 165  # one deviation: 100 * exp(0.5)
    assert lengths.tokens(int(0.1586553 * quantile)) == 61  # 100 * exp(-0.5)
    assert ReplyLengths(median_tokens=100, sigma=0).tokens(0) == 100
    assert lengths.tokens(0) >= 1


@pytest.mark.parametrize(("fields", "said"), [({"median_tokens": 0}, "positive"), ({"sigma": -1}, "0 or more")])
def test_impossible_lengths_are_refused(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReplyLengths(**fields)


def test_sources_are_chosen_by_name() -> None:
    assert isinstance(make_reply_source("prose", TOKENIZER, 1)._texts, ProseReplies)  # type: ignore[attr-defined]
    assert isinstance(make_reply_source("echo", TOKENIZER, 1)._texts, EchoReplies)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="reply source 'poem': write it as module:name"):
        make_reply_source("poem", TOKENIZER, 1)


def test_long_prose_is_more_than_the_event_loop_has_time_for() -> None:
    long = request("a tale", limit_tokens=100_000, max_tokens=2 * BRIEF_TOKENS, ignore_eos=True)
    replies = ProseReplies(TOKENIZER)
    with pytest.raises(BudgetError):
        limited(lambda: replies.reply(long), Budget(FULL, tokens=BRIEF_TOKENS))
    assert len(limited(lambda: replies.reply(long), Budget(FULL)).ids) == 2 * BRIEF_TOKENS
    brief = replace(long, ignore_eos=False)  # a high limit alone makes no reply long
    assert len(limited(lambda: replies.reply(brief), Budget(FULL, tokens=BRIEF_TOKENS)).ids) < BRIEF_TOKENS

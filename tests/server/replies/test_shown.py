"""Replies in forms that instructions show: slots, marks, and tools that are declared in words."""

import ast
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.replies.reply import ReplyRequest, Tool
from llmirage_server.replies.shown import filled, shown_form

VERDICT = """You review products. Answer in exactly this form:

Verdict: <yes or no>
Score: <a number from 3 to 5>
Reason: <one sentence>

Be brief."""
TAGS = """Think first. Respond in the following format:
<analysis>
<topic>{topic}</topic>
<mood>...</mood>
"""
HEADINGS = """Your output follows this structure:

=== city ===
{city}

=== population ===
{population}  # note: the value must be a single integer

=== done ===
Now begin."""
CODE = """Solve the task with code in Python. The code must be {}, and closed with '{}'.
Thoughts: I look first.
{}
print(1)
{}
You only have these functions:
def get_weather(city: str, days: int = 1) -> str:
    \"\"\"Get the weather in a city.\"\"\"

def count_birds(place: str):
    \"\"\"Count the birds of a place.\"\"\"

def submit(answer: any) -> any:
    \"\"\"Ends the task.\"\"\"
"""


def ask(said: str, *instructions: str, **more: Any) -> ReplyRequest:
    ids = np.arange(20, dtype=np.int32)
    fields = {"prompt_ids": ids, "max_tokens": None, "limit_tokens": 4000, "instructions": (*instructions, said), **more}
    return ReplyRequest(**fields, last_user_text=said)


def shown_reply(request: ReplyRequest, key: int) -> str | None:
    form = shown_form(request.instructions or ())
    return None if form is None else filled(form, request, key)


def reply(said: str, *instructions: str, **more: Any) -> str:
    text = shown_reply(ask(said, *instructions, **more), 7)
    assert text is not None
    return text


def test_labels_with_what_belongs_behind_them() -> None:
    found = re.fullmatch(r"Verdict: (yes|no)\nScore: ([345])\nReason: (\w[^\n]+)", reply("A lamp", VERDICT))
    assert found is not None
    assert len({reply("A lamp", VERDICT), *(shown_reply(ask("A lamp", VERDICT), key) for key in range(30))}) > 5


def test_the_form_may_stand_in_the_question() -> None:
    assert re.fullmatch(
        r"Colour: (red|green|blue)\nAge: \d+", reply("Reply like this:\nColour: [red/green/blue]\nAge: {age}")
    )


def test_one_label_is_a_form_where_a_colon_leads_to_it() -> None:
    assert re.fullmatch(r"Answer: [ABCD]", reply("Which?\n\nAnswer in this format:\n\nAnswer: <A, B, C or D>"))
    assert shown_form(["Write about the form.\nAnswer: <a letter>"]) is None


def test_labels_may_be_emphasized() -> None:
    assert re.fullmatch(
        r"- \*\*Mood\*\*: (good|bad)\n- \*\*Why\*\*: \S.+",
        reply("Reply exactly like this:\n- **Mood**: [good|bad]\n- **Why**: [text]"),
    )


def test_tags() -> None:
    text = reply("Is it raining?", TAGS.replace("<analysis>\n", ""))
    assert re.fullmatch(r"<topic>[^<>{}]+</topic>\n<mood>[^<>.]+\.?</mood>", text)


def test_headings_that_name_their_slots_and_end_the_form() -> None:
    found = re.fullmatch(
        r"=== city ===\n(.+)\n\n=== population ===\n(.+)\n\n=== done ===", reply('Tell me about "Bergen"', HEADINGS)
    )
    assert found is not None
    assert found[1] == "Bergen"


def test_fields_that_the_message_has_are_not_said_again() -> None:
    text = reply("=== city ===\nBergen\n\nAnswer from `=== population ===` on.", HEADINGS)
    assert text.startswith("=== population ===\n")
    assert "city" not in text


@pytest.mark.parametrize(
    ("opened", "opening", "closing"),
    [
        ("opened with '<code>'", "<code>", "</code>"),
        ("opened with '```py'", "```py", "```"),
        ('started with "[[run]]"', "[[run]]", "[[/run]]"),
    ],
)
def test_code_between_marks_calls_the_functions_that_are_declared(opened: str, opening: str, closing: str) -> None:
    prompt = CODE.format(opened, closing, opening, closing)
    found = re.fullmatch(
        rf"Thoughts: [^\n]+\n{re.escape(opening)}\n(.+)\n{re.escape(closing)}", reply("What's the weather in Oslo?", prompt)
    )
    assert found is not None
    assert found[1] == "print(get_weather(city='Oslo'))"
    both = reply("Call get_weather for Oslo and count_birds for Rome", prompt)
    assert "print(get_weather(city='Oslo'))\nprint(count_birds(place='Rome'))" in both
    done = reply(
        "What's the weather in Oslo?", prompt, called=("get_weather", "print"), results=("12 degrees", "12 degrees")
    )
    assert "submit(answer='12 degrees" in done
    ast.parse(found[1])


@pytest.mark.parametrize(
    ("sentence", "pattern"),
    [
        ("Begin your answer with '<<<' and end it with '>>>'.", r"<<<[^<>]+>>>"),
        ('Wrap the final answer in "<answer>" and "</answer>".', r"<answer>[^<>]+</answer>"),
    ],
)
def test_an_answer_between_marks(sentence: str, pattern: str) -> None:
    assert re.fullmatch(pattern, reply("Why is the sky blue?", sentence))


def test_a_slot_for_a_tool_gets_its_name_and_another_its_arguments() -> None:
    prompt = """Structure your replies in this way:

# thought
{thought}

# tool
{tool}   // one of: lookup_word; done

# input
{input}   // JSON of the schema {"type": "object"}

* lookup_word finds a word; its arguments are {"word": {"type": "string"}}
* done ends it; its arguments are {}"""
    said = "Use lookup_word for the word `heron`"
    found = re.fullmatch(r"# thought\n.+\n\n# tool\n(.+)\n\n# input\n(.+)", reply(said, prompt))
    assert found is not None
    assert found.groups() == ("lookup_word", '{"word": "heron"}')


@pytest.mark.parametrize(
    ("prompt", "said", "expected"),
    [
        ("Select the next role from ['bob', 'dan'] to play. Only return the role.", "We talk", "bob|dan"),
        ("Select the next role from ['bob', 'dan'] to play. Only return the role.", "Dan is next", "dan"),
        ("Classify the review as positive, negative or neutral. Respond with only the label.", "It works", "p.+|ne.+"),
        ("Classify the review as positive, negative or neutral. Respond with only the label.", "all negative", "negative"),
        ("", "Is the sky blue? Answer yes or no.", "yes|no"),
        ("You are a guard. Reply with exactly SAFE or UNSAFE.", "Is it?", "SAFE|UNSAFE"),
        (
            "One of these topics:\n- **billing**: invoices, or payments\n- bugs (all)\n\nRespond with only the topic.",
            "Hi",
            "billing|bugs",
        ),
        ("Rate the answer on a scale from 4 to 6. Respond only with the number.", "A: x", "[456]"),
        ("", "2+2? A) 3 B) 4 C) 5\nAnswer with only the letter (A, B, or C).", "[ABC]"),
        ('Grade the document: return "relevant" or "irrelevant", nothing else.', "q", "relevant|irrelevant"),
    ],
)
def test_a_demand_for_one_of_some_options_gets_one(prompt: str, said: str, expected: str) -> None:
    assert {re.fullmatch(expected, str(shown_reply(ask(said, prompt), seed))) is None for seed in range(5)} == {False}


def test_a_choice_is_over_with_its_question() -> None:
    first, second = "Is the sky blue? Answer only yes or no.", "Tell me more."
    assert shown_reply(ask(second, "You help.", first), 1) is None


@pytest.mark.parametrize(
    "prompt",
    [
        "Return only the name or ID of the user.",
        "Only answer questions about cats or dogs.",
        "Respond only in JSON or YAML.",
        "Answer only with what stands in the context, as a pirate or a poet would.",
        "Write 2 to 3 sentences. Return only the text.",
        "Return just the code, as Python or C++.",
        "Use the tools 'a' and 'b' only.",
        "Use the variables {name} and {age} of the template.",
        "Format dates like this: 2027-01-01",
        "The page has <b>bold</b> words.\n<i>x</i>",
        "Reply in the form that suits you.\n- a list\n- another",
        "Answer briefly.",
        'Return JSON like this:\n{\n  "tags": ["a", "b"],\n  "names": ["c"]\n}',
        "Respond in the format of the table:\n| a | b |\n|---|---|\n| [1] | [2] |",
        "The following is an f-string:\nprint(f'{value}')",
        "Open the file 'a.txt' and close the file 'b.txt'.",
    ],
)
def test_what_is_no_form_is_none(prompt: str) -> None:
    assert shown_reply(ask("Hello", prompt), 1) is None


def test_requests_with_tools_schemas_or_exact_lengths_keep_their_own_form(source: Any) -> None:
    assert source.reply(ask("A lamp", VERDICT)).text.startswith("Verdict: ")
    tool = Tool("function", "look", "Looks", {"type": "object"})
    for more in ({"tools": (tool,)}, {"json_schema": {"type": "object"}}, {"ignore_eos": True, "max_tokens": 9}):
        assert not source.reply(ask("A lamp", VERDICT, **more)).text.startswith("Verdict: ")


names = st.lists(st.from_regex(r"[a-z]{3,9}", fullmatch=True), min_size=2, max_size=6, unique=True)
borders = st.sampled_from([("[[ ", " ]]"), ("## ", " ##"), ("<|", "|>"), ("@", ":")])


@given(names=names, border=borders, key=st.integers(0, 1 << 40))
def test_a_reply_in_any_headed_form_can_be_read_back(names: list[str], border: tuple[str, str], key: int) -> None:
    form = "\n\n".join(f"{border[0]}{name}{border[1]}\n{{{name}}}" for name in names)
    text = shown_reply(ask("Hello there", f"Write your response in this format:\n\n{form}\n\nThank you."), key)
    assert text is not None
    pattern = "\n\n".join(rf"{re.escape(border[0] + name + border[1])}\n(.+)" for name in names)
    assert re.fullmatch(pattern, text)


@given(
    st.lists(
        st.text(max_size=30)
        | st.sampled_from(
            [
                "Respond in this format:",
                "{a}",
                "A: <b>",
                "<c>d</c>",
                "def f(x):",
                "opened with '<' and closed with '>' code",
                "x arguments {",
            ]
        ),
        max_size=12,
    )
)
def test_no_text_is_too_odd(parts: list[str]) -> None:
    shown_reply(ask("Hello", "\n".join(parts)), 3)


@pytest.mark.parametrize(
    "text",
    [
        "answer format " * 70,
        "open'a' " * 120,
        "x arguments {" * 70,
        "def f(" * 150,
        "A: <" * 200,
        "{a}" * 300,
        "{" * 900,
        "(" * 900,
    ],
)
def test_a_long_prompt_is_read_quickly(text: str) -> None:
    began = time.perf_counter()
    shown_reply(ask("Hello", "Reply in this form:\n" + f"{text}\n" * 150), 3)
    assert time.perf_counter() - began < 2

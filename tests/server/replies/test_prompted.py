"""Forms of an answer that are asked for in words."""

import json

from llmirage_server.replies.prompted import object_form, prompted_form

USER = {"properties": {"name": {"type": "string"}}, "required": ["name"], "type": "object"}


def test_a_schema_in_the_instructions_is_followed() -> None:
    form = prompted_form(
        [f"Always respond with a JSON object that's compatible with this schema:\n\n{json.dumps(USER)}\n\nNo fences."]
    )
    assert form == (USER, False)


def test_the_last_schema_counts_and_a_code_block_is_made_where_it_is_asked_for() -> None:
    example = {"properties": {"foo": {"type": "array"}}}
    form = prompted_form([
        f"The output should conform to the JSON schema below. For example, for {json.dumps(example)} ... Here is "
        f"the schema:\n```\n{json.dumps(USER, indent=1)}\n```",
        "Jason is 25. Return the correct JSON response within a ```json codeblock.",
    ])  # fmt: skip
    assert form == (USER, True)


def test_a_schema_that_is_only_spoken_of_is_not_followed() -> None:
    tools = {"type": "function", "function": {"name": "f", "parameters": USER}}
    assert prompted_form([f"You may call tools. Return their results: {json.dumps(tools)} match their schema"]) is None
    assert prompted_form([f"What is wrong with {json.dumps(USER)}?"]) is None
    assert prompted_form(["Return JSON that follows the schema {not one}"]) is None
    assert prompted_form(['Return JSON that follows the schema {"properties": {"a": {"type": "nothing"}}}']) is None


def test_keys_are_taken_from_words() -> None:
    assert list(object_form(["Return JSON with keys name, age and is_member."])["properties"]) == [
        "name",
        "age",
        "is_member",
    ]
    assert object_form(["JSON with 'city' and 'price' please"])["properties"] == {
        "city": {"type": "string"},
        "price": {"type": "number"},
    }
    assert object_form([json.dumps(USER), "JSON!"]) == USER
    assert object_form(["Some JSON"])["required"] == ["answer", "explanation"]


def test_a_key_in_the_plural_is_a_list() -> None:
    schema = object_form(["Answer in JSON with the keys name, tags, status, address, categories and days"])
    kinds = {name: sub["type"] for name, sub in schema["properties"].items()}
    assert kinds == {
        "name": "string",
        "tags": "array",
        "status": "string",
        "address": "string",
        "categories": "array",
        "days": "integer",
    }


def test_the_types_of_keys_are_taken_from_words() -> None:
    said = (
        "Respond with a JSON object in the following order of fields: `thought`, then `tool` (must be formatted as a valid "
        "Python Literal['search', 'finish']), then `score` (must be formatted as a valid Python int)."
    )
    schema = object_form([said])
    assert schema["required"] == ["thought", "tool", "score"]
    assert schema["properties"] == {
        "thought": {"type": "string"},
        "tool": {"enum": ["search", "finish"]},
        "score": {"type": "integer"},
    }

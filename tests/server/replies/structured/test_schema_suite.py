"""The JSON Schema Test Suite, draft 2020-12: values for its schemas, and verdicts on its values.

It is no part of this repository: JSON_SCHEMA_TEST_SUITE names a checkout of json-schema-org/JSON-Schema-Test-Suite.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from llmirage_server.replies.structured.budget import FULL, Budget, limited
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.validity import Validator
from llmirage_server.replies.structured.values import value_for

SUITE = Path(os.environ.get("JSON_SCHEMA_TEST_SUITE", ""))
DRAFT = "draft2020-12"
REMOTE = "http://localhost:1234"
# Formats are asserted; Python's regular expressions are taken; no vocabulary is left out; and what remains of formats.
OTHERWISE = ("format.json", "vocabulary.json", "optional/format/")

pytestmark = pytest.mark.skipif(not (SUITE / "tests" / DRAFT).is_dir(), reason="JSON_SCHEMA_TEST_SUITE names no checkout")


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    root = SUITE / "tests" / DRAFT
    for path in sorted(root.rglob("*.json")):
        for case in json.loads(path.read_text()):
            yield path.relative_to(root).as_posix(), case


def elsewhere(error: SchemaError) -> bool:
    """Return True if a schema was refused because it refers to another document."""
    return "does not point into this schema" in str(error)


def test_a_value_is_valid_or_its_schema_is_refused() -> None:
    remotes = SUITE / "remotes"
    known = [(f"{REMOTE}/{path.relative_to(remotes).as_posix()}", json.loads(path.read_text()))
             for path in remotes.rglob("*.json")]  # fmt: skip
    registry = jsonschema_rs.Registry(known, draft=jsonschema_rs.Draft202012)
    counts: Counter[str] = Counter()
    for name, case in cases():
        schema = case["schema"]
        judge = jsonschema_rs.Draft202012Validator(schema, registry=registry, validate_formats="format" in name)
        for seed in range(4):
            try:
                value = limited(lambda schema=schema, seed=seed: value_for(schema, seed), Budget(FULL))  # type: ignore[misc]
            except SchemaError as error:
                outcome = "refused: refers to another document" if elsewhere(error) else "refused: nothing satisfies it"
                wrong = outcome.endswith("it") and any(test["valid"] for test in case["tests"])
            else:
                outcome, wrong = "valid", not judge.is_valid(value)
            assert not wrong, (name, case["description"], outcome)
            counts[outcome] += not seed
    print(dict(counts))
    assert counts["valid"] > 400


def test_verdicts_are_those_of_the_suite() -> None:
    for name, case in cases():
        if name.startswith(OTHERWISE):
            continue
        for test in case["tests"]:
            try:
                wrong = Validator(case["schema"]).is_valid(test["data"]) != test["valid"]
            except SchemaError as error:
                wrong = not elsewhere(error)
            assert not wrong, (name, case["description"], test["description"])

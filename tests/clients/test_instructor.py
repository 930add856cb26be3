"""instructor against the server, in each of its modes."""

from collections.abc import Iterable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import openai
import pytest
from pydantic import BaseModel, Field

instructor = pytest.importorskip("instructor")
exceptions = pytest.importorskip("instructor.core.exceptions")
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
JASON = [{"role": "user", "content": "Extract Jason is 25 years old"}]


class Kind(Enum):
    A = "a"
    B = "b"


class User(BaseModel):
    name: str
    age: int


class Everything(BaseModel):
    id: UUID
    when: datetime
    day: date
    at: time
    amount: Decimal = Field(gt=0, max_digits=8, decimal_places=2)
    kind: Kind
    literal: Literal["x", "y", 3]
    optional: User | None = None
    mapping: dict[str, int]
    members: set[int]
    pair: tuple[int, str]
    users: list[User] = Field(min_length=1)
    either: int | str
    fraction: float = Field(ge=0, lt=1)
    fives: int = Field(multiple_of=5)
    short: str = Field(max_length=10, min_length=3)


class Weather(BaseModel):
    """Get the weather in a location."""

    location: str


class Search(BaseModel):
    """Search the web."""

    query: str


def client(base_url: str, mode: str) -> Any:
    return instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=0), mode=getattr(instructor.Mode, mode)
    )


def create(base_url: str, mode: str, wanted: Any, **options: Any) -> Any:
    options = {"model": MODEL, "messages": JASON, "max_retries": 0, "response_model": wanted, **options}
    return client(base_url, mode).chat.completions.create(**options)


MODES = ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "RESPONSES_TOOLS"]


@pytest.mark.parametrize("mode", MODES)
def test_what_was_said_is_extracted(base_url: str, mode: str) -> None:
    assert create(base_url, mode, User).model_dump() == {"name": "Jason", "age": 25}
    assert create(base_url, mode, Literal["spam", "ham"]) in ("spam", "ham")
    assert all(isinstance(user, User) for user in create(base_url, mode, list[User]))


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON"])
def test_a_model_of_everything(base_url: str, mode: str) -> None:
    assert isinstance(create(base_url, mode, Everything), Everything)


@pytest.mark.parametrize("mode", MODES)
def test_partial_and_iterable_streams(base_url: str, mode: str) -> None:
    completions = client(base_url, mode).chat.completions
    partial = list(completions.create_partial(model=MODEL, messages=JASON, response_model=User))
    assert len(partial) >= 3
    assert User.model_validate(partial[-1].model_dump()).age > 0
    users = list(completions.create_iterable(model=MODEL, messages=JASON, response_model=User))
    assert users
    assert all(isinstance(user, User) for user in users)


def test_parallel_tools(base_url: str) -> None:
    said = [{"role": "user", "content": "Use Weather for Toronto and Search for llamas."}]
    calls = list(create(base_url, "PARALLEL_TOOLS", Iterable[Weather | Search], messages=said))
    assert [call.location for call in calls if isinstance(call, Weather)] == ["Toronto"]
    assert sum(isinstance(call, Search) for call in calls) == 1


def test_cut_short_and_wrong_models_are_errors(base_url: str) -> None:
    with pytest.raises(exceptions.IncompleteOutputException):
        create(base_url, "TOOLS", Everything, max_tokens=4)
    with pytest.raises(Exception, match="does not exist"):
        create(base_url, "JSON", User, model="nobody")
    stream = iter(
        client(base_url, "TOOLS").chat.completions.create_partial(model=MODEL, messages=JASON, response_model=User)
    )
    next(stream)
    del stream  # aborts
    assert create(base_url, "TOOLS", User).age == 25

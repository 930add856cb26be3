"""Regular expressions matched by sets of places: as `re` matches them, and in bounded steps where `re` does not end."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_server.replies.structured.budget import FULL, Budget, BudgetError, limited
from llmirage_server.replies.structured.matcher import MOST_PLACES, NoPatternError, PatternError, PatternMatcher, compiled
from llmirage_server.replies.structured.pattern import matching, whole_match


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(
        ["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "^", "$", r"\b", "", "[a-c1]", r"\.", "A"]
    )

    def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda a, b: f"(?:{a}|{b})", inner, inner),
            st.builds(
                lambda a, r: f"({a}){r}", inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
            ),
            st.builds(lambda a, k: f"({k}{a})", inner, st.sampled_from(["?=", "?!", "?i:"])),
        )

    return st.recursive(leaves, deeper, max_leaves=6)


@settings(max_examples=600, deadline=None)
@given(expressions(), st.text("abcA1 .", max_size=7))
def test_matches_what_re_matches(expression: str, text: str) -> None:
    reference = re.compile(expression)
    matcher = PatternMatcher(expression)
    assert matcher.search(text) == bool(reference.search(text))
    assert matcher.fullmatch(text) == bool(reference.fullmatch(text))


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        (r"^(?<y>\d{4})$", "2026", True),
        (r"^\d$", "٣", False),  # an Arabic digit: ECMAScript's \d is ASCII
        ("^a$", "a\n", False),  # ECMAScript's $ is the end of the text
        ("(?m)^b$", "a\nb\nc", True),
        ("(?s)a.b", "a\nb", True),
        ("a.b", "a\nb", False),
        ("(?i)[^A]", "a", False),
        (r"(?<=ab)c", "abc", True),
        (r"(?<!b)c", "abc", False),
        (r"^[\p{L}\d]+$", "Ab1", True),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "-12.50", True),  # pydantic's Decimal
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "-.", False),
        ("[[a]", "[", True),
        ("^a{1000000000}$", "aaa", False),
        ("^.{1,65536}$", "text", True),
    ],
)
def test_examples(expression: str, text: str, found: bool) -> None:
    assert compiled(expression).search(text) is found


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (r"(a)\1", "back-references"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        (r"(a)?(?(1)b|c)", "conditions"),
        ("(?>a+)b", "atomic groups"),
        ("a++b", "possessive quantifiers"),
        ("(?<=a+)b", "look behind of no fixed width"),
    ],
)
def test_what_places_cannot_match_is_refused(expression: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        compiled(expression)


@pytest.mark.parametrize("expression", ["[a-", "a{2,1}", "(", "*a", "a{99999999999}", r"\8", "(?L)a"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(NoPatternError):
        compiled(expression)


def test_nested_and_repeated_without_end_is_refused() -> None:
    with pytest.raises(PatternError, match="nested too deeply"):
        compiled("(" * 5000 + "a" + ")" * 5000)
    with pytest.raises(PatternError, match=f"{MOST_PLACES:,} places"):
        compiled("((a{3}b){100}){1000}")


@pytest.mark.parametrize("expression", ["^(a+)+$", "^(a|a)*$", "^(a|ab|b)*$", r"^([A-Za-z]+\s?)+$", "^(a?){30}a{30}$"])
def test_steps_grow_with_the_text(expression: str) -> None:
    def steps(characters: int) -> int:
        budget = Budget(FULL)
        limited(lambda: PatternMatcher(expression).search("a" * characters + "!"), budget)
        return FULL - budget.left

    assert steps(400) < 2.5 * steps(200) < 0.2 * FULL


@pytest.mark.parametrize(
    "work",
    [
        lambda rng: matching("a{1000000000}", rng),
        lambda rng: matching("(?:a{1000}){1000}", rng),
        lambda rng: matching("b", rng, 10**9),
        lambda rng: matching("^((?=.*a)(?=.*b).)*$", rng, 5000),
        lambda rng: whole_match("(.{1000}){1000}", 1),
    ],
)
def test_too_much_work_is_refused(work: object) -> None:
    assert callable(work)
    with pytest.raises((BudgetError, PatternError)):
        limited(lambda: work(random.Random(1)), Budget(FULL))

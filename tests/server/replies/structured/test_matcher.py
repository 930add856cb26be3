"""Regular expressions as ECMA-262 has them: what matches, what texts are written for them, and in bounded steps."""

import random
import re
from contextlib import suppress

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.replies.structured.budget import FULL, Budget, BudgetError, limited
from llmirage_server.replies.structured.matcher import Language, TextDemand, compiled, language
from llmirage_server.replies.structured.regex_syntax import NoPatternError, PatternError
from llmirage_server.replies.structured.strings import text_of, whole_match

LINE_ENDS = "\r\u2028\u2029"  # of which `re` knows nothing


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(
        ["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "^", "$", r"\b", "", "[a-c1]", r"\.", "A", "(?<=a)",
         "(?<!ab)", "(?<=^|b)", r"(?<=\ba)"]
    )  # fmt: skip

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


def matching(expression: str, rng: random.Random, *lengths: int) -> str:
    """A text that the expression matches, wherever in it."""
    return text_of([TextDemand(expression)], rng, *lengths)


def python_s(expression: str) -> re.Pattern[str] | None:
    """The expression as `re` reads it: a look behind of no fixed width it refuses."""
    try:
        return re.compile(expression)
    except re.error:
        return None


@given(expressions(), st.text("abcA1 .", max_size=7))
def test_matches_what_re_matches(expression: str, text: str) -> None:
    reference = python_s(expression)
    if reference is not None:
        assert compiled(expression).has(text) == bool(reference.search(text))
        assert language((TextDemand(expression, whole=True),)).has(text) == bool(reference.fullmatch(text))


@given(expressions(), st.lists(st.text("abcA1 .", max_size=4), max_size=8), st.integers(0, 99))
def test_a_text_is_written_wherever_one_matches(expression: str, texts: list[str], seed: int) -> None:
    reference = python_s(expression)
    if reference is None:
        return
    try:
        written = limited(lambda: matching(expression, random.Random(seed)), Budget(FULL))
    except PatternError:
        assert not [text for text in texts if reference.search(text)]
    else:
        assert compiled(expression).has(written)
        assert reference.search(written) or set(written) & {*LINE_ENDS, "\n"}


@given(st.lists(expressions(), min_size=1, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 9))
def test_a_text_meets_several_demands_at_once(patterns: list[str], negative: list[bool], seed: int) -> None:
    demands = [TextDemand(pattern, negative=no) for pattern, no in zip(patterns, negative, strict=False)]
    try:
        written = limited(lambda: text_of(demands, random.Random(seed), 1, 6), Budget(FULL))
    except PatternError:
        for text in ("a", "b", "ab", "A1", " .", "aab", "cab1"):
            assert not all(compiled(demand.pattern).has(text) != demand.negative for demand in demands)
    else:
        assert 1 <= len(written) <= 6
        assert all(compiled(demand.pattern).has(written) != demand.negative for demand in demands)


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        (r"^(?<y>\d{4})$", "2026", True),
        (r"^\d$", "٣", False),  # an Arabic digit: ECMAScript's \d is ASCII
        (r"^\w$", "é", False),
        (r"^\s$", "\ufeff", True),
        (r"^\s$", "\x1c", False),
        ("^a$", "a\n", False),  # ECMAScript's $ is the end of the text
        ("a.b", "a\u2028b", False),
        ("(?m)^b$", "a\nb\nc", True),
        ("(?s)a.b", "a\nb", True),
        ("a.b", "a\nb", False),
        ("(?i)[^A]", "a", False),
        ("(?i)^Ä[à-ö]$", "äÖ", True),
        ("a(?i:b)c", "aBc", True),
        ("a(?i:b)c", "aBC", False),
        (r"(?<=ab)c", "abc", True),
        (r"(?<!b)c", "abc", False),
        (r"(?<=\$\d+)\.00", "$100.00", True),  # of any width, unlike Python's
        (r"(?<=\$\d+)\.00", "100.00", False),
        (r"^[\p{L}\d]+$", "Ab1é", True),
        (r"^\p{Lu}+$", "go", False),
        (r"^\p{Lu}+$", "ÀÉ", True),
        (r"^\P{Lu}+$", "go", True),
        (r"^[^\p{L}]$", "1", True),
        (r"^\p{Script=Greek}+$", "αβγ", True),
        (r"^\p{Script=Greek}+$", "abc", False),
        (r"^\pL$", "é", True),
        (r"^\u{1F600}\ud83d\ude00\u0041\x41\cJ\0$", "😀😀AA\n\0", True),
        ("^.$", "😀", True),
        ("^[😀-😂]$", "😁", True),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "-12.50", True),  # pydantic's Decimal
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "-.", False),
        ("[[a]", "[", True),
        ("[]", "", False),  # the empty set
        ("[^]", "\n", True),  # its opposite
        (r"\-\_\/\"", '-_/"', True),
        ("a{,2}b{", "b{", True),
        (r"\Aa\Z", "a", True),
        (r"[\b]", "\b", True),
        ("^a{1000000000}$", "aaa", False),
        ("^.{1,65536}$", "text", True),
        ("^(?:(?!foo).)*$", "a fob", True),
        ("^(?:(?!foo).)*$", "a foo", False),
        ("^(?=.*[A-Z])(?=.*[0-9]).{8,}$", "abcdefG1", True),
        ("^(?=.*[A-Z])(?=.*[0-9]).{8,}$", "abcdefgh1", False),
    ],
)
def test_examples(expression: str, text: str, found: bool) -> None:
    assert compiled(expression).has(text) is found


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (r"(a)\1", "back-references"),
        (r"(?<x>a)\k<x>", "back-references"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        (r"(a)?(?(1)b|c)", "conditions"),
        ("(?>a+)b", "atomic groups"),
        ("a++b", "possessive quantifiers"),
        ("(?x) a b", "verbose expressions"),
        ("(?<=a(?=b))b", "look ahead in a look behind"),
        ("(" * 5000 + "a" + ")" * 5000, "nested too deeply"),
    ],
)
def test_what_sets_of_places_cannot_match_is_refused(expression: str, said: str) -> None:
    with pytest.raises(PatternError, match=said) as caught:
        compiled(expression)
    assert not isinstance(caught.value, NoPatternError)


@pytest.mark.parametrize(
    "expression",
    ["[a-", "a{2,1}", "(", ")", "*a", "a**", "^*", r"\8", r"(a)\2", "(?L)a", "(?y)a", r"\a", r"\e", r"\p{Nope}", r"\p",
     r"[\d-z]", "[b-a]", "\\", r"\u{110000}", r"\u{}", r"\xg", "(?", "(?<a", "(?#"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(NoPatternError):
        compiled(expression)


@pytest.mark.parametrize("expression", ["^(a+)+$", "^(a|a)*$", "^(a|ab|b)*$", r"^([A-Za-z]+\s?)+$", "^(a?){30}a{30}$"])
def test_steps_grow_with_the_text(expression: str) -> None:
    def steps(characters: int) -> int:
        budget = Budget(FULL)
        limited(lambda: language((TextDemand(expression), TextDemand(f"|{characters}"))).has("a" * characters + "!"), budget)
        return FULL - budget.left

    assert steps(400) < 2.5 * steps(200) < 0.2 * FULL


@pytest.mark.parametrize(
    "work",
    [
        lambda rng: matching("a{1000000000}", rng),
        lambda rng: matching("(?:a{1000}){1000}", rng),
        lambda rng: matching("b", rng, 10**9),
        lambda rng: matching("^((?=.*a)(?=.*b).)*$", rng, 5000),
        lambda rng: matching("".join([f"(?=.*{letter})" for letter in "abcdefghijklmnopqrstuvwxyz"]) + ".{26,}", rng),
        lambda rng: whole_match("(.{1000}){1000}", 1),
        lambda rng: compiled("(a?){99999}b").has("a" * 5000),
    ],
)
def test_too_much_work_is_refused(work: object) -> None:
    assert callable(work)
    with pytest.raises((BudgetError, PatternError)):
        limited(lambda: work(random.Random(1)), Budget(FULL))


WRITTEN = [
    r"^\d{3}-\d{4}$", r"[a-f0-9]{8}", r"^(yes|no)$", r"^[^aeiou]+$", r"^\w+@\w+\.(com|org)$", r"^(?=.*\d)[a-z\d]{6,8}$",
    r"^(?<year>\d{4})$", r"^\p{L}+$", r"^\p{Lu}+$", r"^[\p{Lu}\p{Nd}]{2,}$", r"(ab)+c?", ".", "", r"\bfoo\b", r"^[^\S ]+$",
    r"^(?=.*[A-Z])(?=.*\d).{8,}$", r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[^\w\s]).{12,64}$", "^[\u4e00-\u9fff]{2,4}$",
    r"^((?!foo).)*$", r"(?<=ab)c", r"^(a|b)*a(a|b){12}$", r"^\P{ASCII}{3}$", "^[\x00-\x1f]$", r"^[A-Z]{2}(?<!AA|BB)\d$",
    r"^(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}$", r"^(?!.*\.\.)[a-z.]{1,20}$", r"^\p{Emoji_Presentation}{2}$",
]  # fmt: skip


@pytest.mark.parametrize("expression", WRITTEN)
def test_a_written_text_matches(expression: str) -> None:
    judge = jsonschema_rs.Draft202012Validator({"pattern": expression})
    for seed in range(12):
        text = matching(expression, random.Random(seed))
        assert judge.is_valid(text)
        assert compiled(expression).has(text)


@pytest.mark.parametrize("expression", WRITTEN)
def test_what_was_asked_before_does_not_change_a_text(expression: str) -> None:
    """Languages are kept, with the places that earlier requests reached."""
    fresh = [matching(f"(?:{expression}|(?!))", random.Random(seed)) for seed in range(5)]
    for text in ("", "a", "Zz9", "foo", "2001:db8::1", "ÄÖ"):
        compiled(f"(?:(?:{expression})|(?!))").has(text)
    assert fresh == [matching(f"(?:(?:{expression})|(?!))", random.Random(seed)) for seed in range(5)]


def test_a_language_that_is_kept_does_not_grow_without_end() -> None:
    sizes = []
    for seed in range(12):
        language, rng = compiled("^(a|b)*a(a|b){14}$"), random.Random(seed)
        with suppress(BudgetError):
            limited(lambda language=language, rng=rng: language.has("".join(rng.choices("ab", k=2000))), Budget(30_000))  # type: ignore[misc]
        sizes.append(len(language._states))
    assert max(sizes) < 6_000 < sum(sizes)


@pytest.mark.parametrize("expression", [r"^(?=.*\d)(a|b\b)*.{3,}$", r"(?<=\ba)x|(?<!b)\b\w+(?!y)", r"^(?:(?!ab)[ab]){2,5}$"])
def test_steps_that_end_anywhere_leave_an_expression_as_it_was(expression: str) -> None:
    """What is kept is planned with again, first with few steps on the event loop, then with more in a thread."""
    texts = ["", "a1b", "ax", "bb 1", "x", "aab", "ba", "b a1b1"]
    expected = [Language((TextDemand(expression),)).has(text) for text in texts]
    written = matching(f"(?:{expression})", random.Random(3))
    for steps in range(0, 400, 3):
        interrupted = Language((TextDemand(expression),))
        for text in texts:
            with suppress(BudgetError):
                limited(lambda text=text, interrupted=interrupted: interrupted.has(text), Budget(steps))  # type: ignore[misc]
        assert expected == [interrupted.has(text) for text in texts]
        with suppress(BudgetError):
            limited(lambda: matching(f"(?:{expression})", random.Random(3)), Budget(steps))
        assert matching(f"(?:{expression})", random.Random(3)) == written


def test_texts_other_than_those_there_are() -> None:
    rng = random.Random(1)
    found: list[str] = []
    for _ in range(8):
        found.append(text_of([TextDemand("^[ab]{3}$")], rng, besides=found))
    assert len(set(found)) == 8
    with pytest.raises(PatternError, match=r"other than those that are there"):
        text_of([TextDemand("^[ab]{3}$")], rng, besides=found)


def test_lengths_are_kept() -> None:
    for least, most in ((1, 1), (5, 9), (64, 64), (0, 3)):
        text = matching("[0-9]$", random.Random(least), least, most)
        assert max(1, least) <= len(text) <= most
    with pytest.raises(PatternError, match="5 to 7 characters"):
        matching("^(abcd){2,}$", random.Random(1), 5, 7)

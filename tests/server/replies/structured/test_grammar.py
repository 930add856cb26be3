"""Grammars in Lark's notation: what is written for one, Lark itself reads; what cannot be read is refused with its line."""

import re

import pytest
from apply_patch_grammar import APPLY_PATCH
from lark import Lark

from llmirage_server.replies.structured.grammar import check_grammar, text_for
from llmirage_server.replies.structured.matcher import GrammarError

GRAMMARS = {
    "a patch": APPLY_PATCH.replace("(.*)", "(.+)"),  # Lark's own lexer takes no terminal that may be empty
    "JSON": r"""
        ?start: value
        ?value: object | array | string | SIGNED_NUMBER -> number | "true" -> true | "false" -> false | "null" -> null
        array  : "[" [value ("," value)*] "]"
        object : "{" [pair ("," pair)*] "}"
        pair   : string ":" value
        string : ESCAPED_STRING
        %import common.ESCAPED_STRING
        %import common.SIGNED_NUMBER
        %import common.WS
        %ignore WS
    """,
    "sums": r"""
        ?start: sum | NAME "=" sum    -> assign_var
        ?sum: product
            | sum "+" product   -> add
            | sum "-" product   -> sub
        ?product: atom
            | product "*" atom  -> mul
        ?atom: NUMBER           -> number
             | "-" atom         -> neg
             | NAME             -> var
             | "(" sum ")"
        %import common.CNAME -> NAME
        %import common (NUMBER, WS_INLINE)
        %ignore WS_INLINE
    """,
    "a turtle": r"""
        start: instruction+
        instruction: MOVEMENT NUMBER            -> movement
                   | "c" COLOR [COLOR]          -> change_color
                   | "fill" code_block          -> fill
                   | "repeat" NUMBER code_block -> repeat
        code_block: "{" instruction+ "}"
        MOVEMENT: "f"|"b"|"l"|"r"
        COLOR: LETTER+
        %import common.LETTER
        %import common.INT -> NUMBER
        %import common.WS
        %ignore WS
    """,
    "sections": r"""
        start: _NL? section+
        section: "[" NAME "]" _NL item+
        item: NAME "=" VALUE? _NL
        VALUE: /./+
        %import common.CNAME -> NAME
        %import common.NEWLINE -> _NL
        %import common.WS_INLINE
        %ignore WS_INLINE
    """,
    "templates": r"""
        start: list | dict
        list: "[" _separated{atom, ","} "]"
        dict: "{" _separated{key_value, ","} "}"
        key_value: atom ":" atom
        _separated{x, sep}: x (sep x)*  // a sequence of 'x sep x sep x ...'
        atom: NUMBER | ESCAPED_STRING
        %import common (NUMBER, ESCAPED_STRING, WS)
        %ignore WS
    """,
    "changed definitions": r"""
        start: (WORD | number)+ SIGN
        number: DIGIT DIGIT?
        SIGN: "."
        %import common (WORD, DIGIT)
        %override SIGN: "!" | "?"
        %extend number: "0x" DIGIT
        %ignore " "
    """,
    "priorities and options": r"""
        start.2: [sign] HEX
        sign: "+" | "-"
        HEX.2: /[0-9a-f]/i ("0".."9")~1..3
    """,
    "line ends of Windows": 'start: a \\\n  "b"\r\na: "x"\r\n  | "y"\r\n',
}  # fmt: skip
LIBRARIES = {
    "common": (
        "DIGIT HEXDIGIT INT SIGNED_INT DECIMAL _EXP FLOAT SIGNED_FLOAT NUMBER SIGNED_NUMBER _STRING_INNER _STRING_ESC_INNER "
        "ESCAPED_STRING LCASE_LETTER UCASE_LETTER LETTER WORD CNAME WS_INLINE WS CR LF NEWLINE SH_COMMENT CPP_COMMENT "
        "C_COMMENT SQL_COMMENT"
    ),
    "python": (
        "SLASH AWAIT ASYNC _NEWLINE NAME COMMENT STRING LONG_STRING _SPECIAL_DEC DEC_NUMBER HEX_NUMBER OCT_NUMBER "
        "BIN_NUMBER _EXP DECIMAL FLOAT_NUMBER IMAG_NUMBER"
    ),
    "unicode": "WS_INLINE WS",
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_lark_reads_what_is_written_for_a_grammar(name: str) -> None:
    parser = Lark(GRAMMARS[name], parser="earley")
    for seed in range(15):
        parser.parse(text_for(GRAMMARS[name], seed))


@pytest.mark.parametrize(
    ("library", "terminal"), [(library, terminal) for library, names in LIBRARIES.items() for terminal in names.split()]
)
def test_each_terminal_of_larks_libraries_can_be_imported(library: str, terminal: str) -> None:
    ending = "\\n" if "COMMENT" in terminal else ">"
    first, *others = (
        f'start: "<" {name} "{ending}"\n%import {imported}\n'
        for imported, name in (
            (f"{library}.{terminal}", terminal),
            (f"{library}.{terminal} -> OTHER", "OTHER"),
            (f"{library} ({terminal})", terminal),
        )
    )
    texts = [text_for(first, seed) for seed in range(2)]
    assert all([text_for(other, seed) for seed in range(2)] == texts for other in others)
    if "_INNER" not in terminal:  # may be empty, with which Lark reads nothing
        parser = Lark(first, parser="earley")
        assert all(parser.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ('start: "a"\n%import common.WORDS\nstart2: "b"', "line 2 of the grammar: %import of 'WORDS'"),
        ("start: X\n%import .other (X)", "line 2 of the grammar: %import from '.other'"),
        ("start: stmt\n\n%import python (stmt)", "line 3 of the grammar: %import of 'stmt'"),
        ("start: a _INDENT\n%declare _INDENT\n", "line 2 of the grammar: %declare"),
        ("start: WORD\n%imports common.WORD", "line 2 of the grammar: there is no directive %imports"),
        ('start: "a"\n%override b: "c"', "line 2 of the grammar: %override of 'b', which is not defined"),
        ('start: "a"\n// two\nstart: "b"', "line 3 of the grammar: 'start' is defined more than once"),
        ("start: a\na: /b(/", "line 2 of the grammar: 'b('"),
        ("start: a\n  | /(x)\\1/", "line 2 of the grammar: the regular expression uses back-references"),
        ("start: a{b}\nb: \"c\"\nc{x}: x", "line 1 of the grammar: no template 'a'"),
        ('a{x}: x\nstart: a{"b", "c"}', "line 2 of the grammar: no template 'a' has 2 parameters"),
        ('a{x}: "(" x a{a{x}} | x\nstart: a{"b"}', "line 1 of the grammar: template 'a' has no end"),
        ('start: a\n\na: "a" | c', "line 3 of the grammar: there is no rule 'c'"),
        ('start: "a"\n%ignore c', "line 2 of the grammar: there is no rule 'c'"),
        ("start: \"a\" ..", "the grammar"),
        ("%override", "the grammar ends"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_its_line(definition: str, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        check_grammar(definition)


def test_a_range_of_gbnf_is_an_option_in_lark() -> None:
    gbnf = 'root ::= (\n  [ab]\n  "c"\n)\nws.x ::= "d"'
    assert {text_for(gbnf, seed) for seed in range(20)} == {"ac", "bc"}
    assert {text_for('start: [ab] "c"\nab: "long"', seed) for seed in range(20)} == {"longc", "c"}


def test_tokens_that_would_read_as_one_are_kept_apart_by_what_is_ignored() -> None:
    ignoring = 'start: "let" NAME "=" "=" "(" NAME ")"\nNAME: /[a-z]{3}/\n%ignore /[ \\t]+/\n'
    assert re.fullmatch(r"let [a-z]{3}= =\([a-z]{3}\)", text_for(ignoring, 1))
    assert re.fullmatch(r"let[a-z]{3}==\([a-z]{3}\)", text_for(ignoring.replace("%ignore /[ \\t]+/", ""), 1))

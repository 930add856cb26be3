"""Texts that follow a context-free grammar: Lark's notation, and the EBNF and GBNF spellings of it.

Rules are `name: ...` (Lark) or `name ::= ...` (EBNF, GBNF), alternatives `|`, groups `( )`, options `[ ]` (Lark) and `?`,
repetition `*`, `+`, `~ n..m` and `{n,m}`, "text" (with a trailing i: in any case), "a".."z", /regular expression/, [a-z]
(GBNF), templates `name{x}` (Lark) and comments. Lark's directives: %import takes the terminals of its libraries `common`,
`python` and `unicode`, %ignore says what may stand between two tokens that would else read as one, %override and %extend
change a definition, %declare is refused. Priorities (`.1`), aliases (`-> name`) and the marks ?, ! and _ of rules change
nothing here. Lark's own package would read its notation alone, slower, and without counting steps of planning.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from llmirage_server.replies.structured import strings
from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import GrammarError, compiled
from llmirage_server.replies.structured.regex_syntax import PatternError

_DEEP = 24  # expansions within each other after which the shortest way out is taken
_MORE = 2  # repetitions beyond the smallest number, where a grammar leaves it open
_LONGEST = 20_000  # characters
_ENDLESS = 1 << 30

# No way to read a text twice, and bounds where one may look far ahead in vain.
_COMMON_TOKENS = r"""
    (?P<space>[ \t\r]+|\\[ \t\r]*\n) | (?P<comment>(?://|\#)[^\n]*) | (?P<line>\n\s*)
      | (?P<string>"(?:[^"\\]++|\\.)*+"i?|'(?:[^'\\]++|\\.)*+')
      | (?P<regex>/(?:\\.|\[(?:[^\]\\]++|\\.)*+\]|[^/\\\n\[]++)++/[imslux]*)
      | (?P<count>\{\d{0,18}(?:,\d{0,18})?\}|~\s*\d{1,18}(?:\s*\.\.\s*\d{1,18})?(?!\d)) | (?P<directive>%\w+)
      | (?P<alias>->\s*\w+)"""
_LARK = re.compile(
    rf"""{_COMMON_TOKENS} | (?P<define>:) | (?P<range>\.\.) | (?P<priority>\.-?\d+)
      | (?P<name>[?!]{{0,2}}_*[a-z]\w*|_*[A-Za-z]\w*|_\w*) | (?P<mark>[|()\[\]{{}},*+?.])""",
    re.VERBOSE,
)
_GBNF = re.compile(
    rf"""{_COMMON_TOKENS} | (?P<set>\[\^?+(?!\])[^\]\\\s"']{{0,500}}+(?:\\.[^\]\\\s"']{{0,50}}+){{0,50}}+\])
      | (?P<define>::=|:) | (?P<range>\.\.) | (?P<name>[A-Za-z_][\w.-]*) | (?P<mark>[|()\[\]*+?.])""",
    re.VERBOSE,
)
_IS_GBNF = re.compile(r"^\s*[\w-]+[ \t]*::=", re.MULTILINE)

# Readable texts of the terminals of Lark's grammars common.lark, python.lark and unicode.lark (lark 1.3).
_COMMENT = r"[a-z]{2,8}( [a-z]{2,8}){1,3}"
_LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "common": {
        "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-f]", "INT": r"[1-9][0-9]{0,3}", "SIGNED_INT": r"-?[1-9][0-9]{0,3}",
        "DECIMAL": r"[0-9]{1,3}\.[0-9]{1,2}", "_EXP": "e-?[1-9]", "FLOAT": r"[0-9]{1,3}\.[0-9]{1,2}",
        "SIGNED_FLOAT": r"-?[0-9]{1,3}\.[0-9]{1,2}", "NUMBER": r"[1-9][0-9]{0,2}(\.[0-9]{1,2})?",
        "SIGNED_NUMBER": r"-?[1-9][0-9]{0,2}(\.[0-9]{1,2})?", "_STRING_INNER": "[a-z]{2,8}",
        "_STRING_ESC_INNER": "[a-z]{2,8}", "ESCAPED_STRING": '"[a-z]{2,8}"', "LCASE_LETTER": "[a-z]",
        "UCASE_LETTER": "[A-Z]", "LETTER": "[a-z]", "WORD": "[a-z]{2,8}", "CNAME": "[a-z][a-z0-9]{1,7}", "WS_INLINE": " ",
        "WS": " ", "CR": "\r", "LF": "\n", "NEWLINE": "\n", "SH_COMMENT": f"# {_COMMENT}", "CPP_COMMENT": f"// {_COMMENT}",
        "C_COMMENT": rf"/\* {_COMMENT} \*/", "SQL_COMMENT": f"-- {_COMMENT}",
    },
    "python": {
        "NAME": "[a-z][a-z0-9]{1,7}", "COMMENT": f"# {_COMMENT}", "STRING": '"[a-z]{2,8}"',
        "LONG_STRING": '"""[a-z]{2,8}"""',
        "_SPECIAL_DEC": "[1-9][0-9]{0,2}", "DEC_NUMBER": "[1-9][0-9]{0,3}", "HEX_NUMBER": "0x[0-9a-f]{1,4}",
        "OCT_NUMBER": "0o[0-7]{1,4}", "BIN_NUMBER": "0b[01]{1,8}", "_EXP": "e-?[1-9]", "DECIMAL": r"[0-9]{1,3}\.[0-9]{1,2}",
        "FLOAT_NUMBER": r"[0-9]{1,3}\.[0-9]{1,2}", "IMAG_NUMBER": "[1-9][0-9]?j", "SLASH": "/", "AWAIT": "await",
        "ASYNC": "async", "_NEWLINE": "\n",
    },
    "unicode": {"WS_INLINE": " ", "WS": " "},
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class _Text:
    text: str


@dataclass(slots=True, frozen=True)
class _Regex:
    expression: str


@dataclass(slots=True, frozen=True)
class _Name:
    """A rule, a terminal, or with arguments a template."""

    name: str
    line: int
    arguments: tuple[_Node, ...] = ()


@dataclass(slots=True, frozen=True)
class _Sequence:
    items: tuple[_Node, ...]


@dataclass(slots=True, frozen=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(slots=True, frozen=True)
class _Repeat:
    item: _Node
    least: int
    most: int | None


_Node = _Text | _Regex | _Name | _Sequence | _Choice | _Repeat


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


_END = _Token("", "", 0)


def text_for(definition: str, seed: int) -> str:
    """Return a text that follows the grammar, chosen by `seed`.

    Raises GrammarError, and BudgetError when reading the grammar or following it is too much work.
    """
    with _shallow():
        reader = _GrammarReader(definition)
        start = reader.read()
        return _Writer(reader.rules, reader.ignored, random.Random(seed)).text(start)


def check_grammar(definition: str) -> None:
    """Raise GrammarError for a grammar that no text follows, BudgetError when reading it is too much work."""
    with _shallow():
        reader = _GrammarReader(definition)
        start = reader.read()
        _Writer(reader.rules, reader.ignored, random.Random(0)).check(start)


@contextmanager
def _shallow() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None


class _GrammarReader:
    """Recursive descent over the tokens of a grammar. rules: by name; ignored: what %ignore names."""

    def __init__(self, definition: str) -> None:
        self.rules: dict[str, _Node] = {}
        self.ignored: list[_Node] = []
        self._templates: dict[str, tuple[Sequence[str], _Node]] = {}
        self._changes: list[tuple[_Token, str, _Node]] = []  # %override and %extend, made when everything is read
        self._tokens: list[_Token] = []
        self._at = 0
        self._is_lark = _IS_GBNF.search(definition) is None
        expression = _LARK if self._is_lark else _GBNF
        at, line, depth = 0, 1, 0
        while at < len(definition):
            spend()
            match = expression.match(definition, at)
            if match is None:
                raise GrammarError(f"line {line} of the grammar cannot be read at {definition[at : at + 20]!r}")
            spend_characters(match.end() - at)
            at = match.end()
            token = _Token(match.lastgroup or "", match.group(0), line)
            line += token.text.count("\n")
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
            if token.kind not in ("space", "comment") and not (depth > 0 and token.kind == "line"):
                self._tokens.append(token)

    def read(self) -> str:
        """Fill `rules` and `ignored`; return the name of the rule to start with: `start`, `root`, or the first."""
        while (token := self._next()) is not _END:
            if token.kind == "directive":
                self._directive(token)
            elif token.kind != "line":
                name, parameters, node = self._definition(token)
                if parameters is not None:
                    self._templates[name] = (parameters, node)
                elif self._is_lark and name in self.rules:
                    _refuse(token, f"{name!r} is defined more than once")
                else:
                    self.rules[name] = node
        for directive, name, node in self._changes:
            if name not in self.rules:
                _refuse(directive, f"{directive.text} of {name!r}, which is not defined")
            self.rules[name] = _Choice((self.rules[name], node)) if directive.text == "%extend" else node
        if not self.rules:
            raise GrammarError("the grammar has no rules")
        names = ("start", "root", *[name for name in self.rules if not name.isupper()], *self.rules)
        start = next(name for name in names if name in self.rules)
        if self._templates:
            self.rules |= {name: self._expanded(node, {}) for name, node in list(self.rules.items())}
        return start

    def _definition(self, token: _Token) -> tuple[str, Sequence[str] | None, _Node]:
        """Return the name that the token is, the parameters of a template, and what is defined."""
        if token.kind != "name":
            _refuse(token, f"expected the name of a rule, not {token.text!r}")
        parameters: list[str] | None = None
        if self._peek().text == "{":
            parameters = [part.text for part in self._until("}") if part.kind == "name"]
        if self._peek().kind == "priority":
            self._next()
        if self._next().kind != "define":
            _refuse(token, f"expected ':' or '::=' after {token.text!r}")
        return token.text.lstrip("?!"), parameters, self._choice()

    def _directive(self, token: _Token) -> None:
        if token.text == "%ignore":
            self.ignored.append(self._choice())
        elif token.text == "%import":
            self._import(token)
        elif token.text in ("%override", "%extend"):
            name, parameters, node = self._definition(self._next())
            if parameters is not None:
                _refuse(token, f"{token.text} of a template is not supported")
            self._changes.append((token, name, node))
        elif token.text == "%declare":
            _refuse(token, "%declare names terminals without saying what their text is: a reply cannot have one")
        else:
            _refuse(token, f"there is no directive {token.text}")

    def _import(self, token: _Token) -> None:
        """`common.WORD`, `common.WORD -> NAME`, `common (WORD, INT)`: names of _LIBRARIES."""
        path: list[str] = []
        while self._peek().kind in ("name", "mark") and self._peek().text != "(":
            path.append(self._next().text)
        names = [part.text for part in self._until(")") if part.kind == "name"] if self._peek().text == "(" else []
        parts = [part for part in path if part != "."]
        if not names:
            names, parts = parts[-1:], parts[:-1]
        alias = self._next().text.removeprefix("->").strip() if self._peek().kind == "alias" else None
        library = _LIBRARIES.get(".".join(parts)) if path[:1] != ["."] else None
        if library is None:
            _refuse(token, f"%import from {''.join(path)!r}: only {', '.join(_LIBRARIES)} can be imported from")
        for name in names:
            if name not in library:
                _refuse(token, f"%import of {name!r}: it is no terminal of {parts[0]!r}")
            self.rules[alias or name] = _Regex(library[name])

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._continues("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _continues(self, mark: str) -> bool:
        """Return if the mark comes next, on this line or at the beginning of a later one."""
        at = self._at
        while at < len(self._tokens) and self._tokens[at].kind == "line":
            spend()
            at += 1
        if at < len(self._tokens) and self._tokens[at][:2] == ("mark", mark):
            self._at = at + 1
            return True
        return False

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        if self._peek().kind == "alias":
            self._next()
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        token = self._peek()
        kind, text, line = token
        if kind == "string":
            self._next()
            start = _unescaped(text)
            if self._peek().kind == "range":
                self._next()
                last = self._next()
                if last.kind != "string":
                    _refuse(token, f"expected a text after {text}..")
                return self._regex(token, f"[{re.escape(start.text)}-{re.escape(_unescaped(last.text).text)}]")
            return start
        if kind == "regex":
            self._next()
            end = text.rindex("/")
            flags = "".join([flag for flag in "imsx" if flag in text[end:]])
            return self._regex(token, f"(?{flags}:{text[1:end]})" if flags else text[1:end])
        if kind == "set":
            self._next()
            return self._regex(token, text)
        if kind == "name" and self._peek(1).text != "::=":
            self._next()
            arguments = self._arguments() if self._is_lark and self._peek().text == "{" else ()
            return _Name(text.lstrip("?!"), line, arguments)
        if text in ("(", "["):
            self._next()
            inner = self._choice()
            if self._next().text != (")" if text == "(" else "]"):
                _refuse(token, f"a {text!r} is never closed")
            return inner if text == "(" else _Repeat(inner, 0, 1)
        if text == ".":
            self._next()
            return _Regex(".")
        return None

    def _regex(self, token: _Token, expression: str) -> _Regex:
        try:
            compiled(expression)
        except PatternError as error:
            _refuse(token, str(error))
        return _Regex(expression)

    def _repeated(self, item: _Node) -> _Node:
        kind, text, _ = self._peek()
        if text in ("*", "+", "?"):
            self._next()
            return _Repeat(item, 1 if text == "+" else 0, 1 if text == "?" else None)
        if kind == "count":
            self._next()
            numbers = re.findall(r"\d+", text)
            least = int(numbers[0]) if numbers and not text.startswith("{,") else 0
            most = int(numbers[-1]) if numbers and not text.endswith(",}") else None
            return _Repeat(item, least, most)
        return item

    # --- templates ---

    def _arguments(self) -> tuple[_Node, ...]:
        opening = self._next()
        found = [self._choice()]
        while self._peek().text == ",":
            self._next()
            found.append(self._choice())
        if self._next().text != "}":
            _refuse(opening, "a '{' is never closed")
        return tuple(found)

    def _expanded(self, node: _Node, given: Mapping[str, _Node]) -> _Node:
        """Return the node with parameters replaced by arguments, and each use of a template by a rule of its own."""
        spend()
        if isinstance(node, _Name):
            if not node.arguments:
                return given.get(node.name, node)
            arguments = [self._expanded(argument, given) for argument in node.arguments]
            parameters, body = self._templates.get(node.name, ((), node))
            if len(parameters) != len(arguments):
                raise GrammarError(
                    f"line {node.line} of the grammar: no template {node.name!r} has {len(arguments)} parameters"
                )
            if len(key := f"{node.name}{arguments}") > _LONGEST:
                raise GrammarError(f"line {node.line} of the grammar: template {node.name!r} has no end")
            spend_characters(len(key))
            if key not in self.rules:
                self.rules[key] = node  # while it is expanded: it may use itself
                self.rules[key] = self._expanded(body, dict(zip(parameters, arguments, strict=True)))
            return _Name(key, node.line)
        if isinstance(node, _Sequence):
            return _Sequence(tuple([self._expanded(item, given) for item in node.items]))
        if isinstance(node, _Choice):
            return _Choice(tuple([self._expanded(option, given) for option in node.options]))
        return replace(node, item=self._expanded(node.item, given)) if isinstance(node, _Repeat) else node

    # --- tokens ---

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _until(self, mark: str) -> list[_Token]:
        """Return the tokens up to a mark, which is passed over."""
        opening, found = self._peek(), []
        while (token := self._next()).text != mark:
            if token is _END:
                _refuse(opening, f"a {opening.text!r} is never closed")
            found.append(token)
        return found


def _refuse(token: _Token, problem: str) -> NoReturn:
    if token is _END:
        raise GrammarError("the grammar ends in the middle of a rule")
    raise GrammarError(f"line {token.line} of the grammar: {problem}")


class _Writer:
    def __init__(self, rules: dict[str, _Node], ignored: Sequence[_Node], rng: random.Random) -> None:
        self._rules = rules
        self._rng = rng
        self._heights = self._measure()
        self._length = 0
        self._options: dict[int, list[int]] = {}  # heights of the options of a choice, by its id
        self._last = ""  # the last character that is written
        self._gap = self._gap_of(ignored)

    def check(self, start: str) -> None:
        if self._heights[start] == _ENDLESS:
            raise GrammarError(f"rule {start!r} never comes to an end")

    def text(self, start: str) -> str:
        self.check(start)
        return self._write(_Name(start, 0), 0)

    def _measure(self) -> dict[str, int]:
        """For each rule how many rules must be entered within each other to come to an end: the fixed point below endless.

        Rules are measured last to first: most use those that follow them.
        """
        heights = dict.fromkeys(self._rules, _ENDLESS)
        changed = True
        while changed:
            changed = False
            for name, node in reversed(self._rules.items()):
                if (height := self._height(node, heights)) != heights[name]:
                    heights[name], changed = height, True
        return heights

    def _height(self, node: _Node, heights: dict[str, int]) -> int:
        spend()
        if isinstance(node, _Name):
            if node.name not in heights:
                raise GrammarError(f"line {node.line} of the grammar: there is no rule {node.name!r}")
            return min(_ENDLESS, heights[node.name] + 1)
        if isinstance(node, _Sequence):
            return max([self._height(item, heights) for item in node.items], default=0)
        if isinstance(node, _Choice):
            return min([self._height(option, heights) for option in node.options])
        if isinstance(node, _Repeat):
            height = self._height(node.item, heights)  # measured even where it may be left out: unknown names are errors
            return height if node.least else 0
        return 0

    def _heights_of(self, node: _Choice) -> list[int]:
        found = self._options.get(id(node))
        if found is None:
            found = self._options[id(node)] = [self._height(option, self._heights) for option in node.options]
        return found

    def _gap_of(self, ignored: Sequence[_Node]) -> str:
        """White space that the grammar ignores, "" if it ignores none."""
        for node in ignored:
            for _ in range(4):
                if self._height(node, self._heights) < _ENDLESS and (text := self._write(node, 0, True)) and text.isspace():
                    return " " if " " in text else text
        return ""

    def _write(self, node: _Node, depth: int, within: bool = False) -> str:
        """within: inside a terminal, where nothing is ignored."""
        spend()
        if isinstance(node, _Text):
            text = node.text
        elif isinstance(node, _Regex):
            try:
                text = strings.whole_match(node.expression, self._rng.getrandbits(32))
            except PatternError as error:
                raise GrammarError(str(error)) from None
        elif isinstance(node, _Name):
            if within or not node.name.isupper():
                return self._write(self._rules[node.name], depth + 1, within)
            text = self._write(self._rules[node.name], depth + 1, True)
        elif isinstance(node, _Sequence):
            return "".join([self._write(item, depth, within) for item in node.items])
        elif isinstance(node, _Choice):
            heights = self._heights_of(node)
            least = min(heights)
            if depth >= _DEEP:
                options = [option for option, height in zip(node.options, heights, strict=True) if height == least]
            else:
                options = [option for option, height in zip(node.options, heights, strict=True) if height < _ENDLESS]
            return self._write(self._rng.choice(options), depth, within)
        else:
            most = node.least + _MORE if node.most is None else min(node.most, node.least + _MORE)
            count = node.least if depth >= _DEEP else self._rng.randint(node.least, max(node.least, most))
            spend(count)
            return "".join([self._write(node.item, depth, within) for _ in range(count)])
        if not within and text:
            text = self._gap + text if self._gap and _reads_as_one(self._last, text[0]) else text
            self._last = text[-1]
        self._length += len(text)
        if self._length > _LONGEST:
            raise GrammarError("what follows the grammar is too long")
        return text


def _reads_as_one(before: str, after: str) -> bool:
    """Return if a token may go on over these two characters: both of a word, or both of a sign such as `<=`."""
    if not before or (before + after).isspace():
        return False
    words = [character.isalnum() or character == "_" for character in (before, after)]
    return all(words) or not (any(words) or before in "()[]{}\"',; \t\r\n" or after in "()[]{}\"',; \t\r\n")


def _unescaped(written: str) -> _Text:
    text = written.removesuffix("i") if written.endswith('"i') else written
    body = text[1:-1]
    return _Text(re.sub(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", _escape, body))


def _escape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}.get(code, code)

"""Texts that follow a context-free grammar: Lark's notation, and the EBNF and GBNF spellings of it.

Rules are `name: ...` (Lark) or `name ::= ...` (EBNF, GBNF), alternatives `|`, groups `( )`, options `[ ]` (Lark) and `?`,
repetition `*`, `+`, `~ n..m` and `{n,m}`, "text" (with a trailing i: in any case), "a".."z", /regular expression/, [a-z]
(GBNF) and comments. Lark's directives: %ignore is followed by leaving out what it names, %import knows common.* terminals,
%declare is refused. Priorities (`.1`), aliases (`-> name`) and the marks ?, ! and _ of rules change nothing here.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from llmirage_server.replies.structured import pattern
from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import GrammarError, PatternError

_DEEP = 24  # expansions within each other after which the shortest way out is taken
_MORE = 2  # repetitions beyond the smallest number, where a grammar leaves it open
_LONGEST = 20_000  # characters

_TOKEN = re.compile(  # no way to read a text twice, and bounds where one may look far ahead in vain
    r"""(?P<space>[ \t]+) | (?P<comment>(?://|\#)[^\n]*) | (?P<line>\n\s*)
      | (?P<string>"(?:[^"\\]++|\\.)*+"i?|'(?:[^'\\]++|\\.)*+')
      | (?P<regex>/(?:\\.|\[(?:[^\]\\]++|\\.)*+\]|[^/\\\n\[]++)++/[imslux]*)
      | (?P<set>\[\^?+(?!\])[^\]\\\s"']{0,500}+(?:\\.[^\]\\\s"']{0,50}+){0,50}+\])
      | (?P<count>\{\d{0,18}(?:,\d{0,18})?\}|~\s*\d{1,18}(?:\s*\.\.\s*\d{1,18})?(?!\d)) | (?P<directive>%\w+)
      | (?P<alias>->\s*\w+) | (?P<define>::=|:) | (?P<range>\.\.) | (?P<priority>\.-?\d+)
      | (?P<name>[?!_]{0,3}[A-Za-z][\w.-]*|_\w*)
      | (?P<mark>[|()\[\]*+?.])""",
    re.VERBOSE,
)
_COMMON = {
    "INT": r"[1-9][0-9]{0,3}", "SIGNED_INT": r"-?[1-9][0-9]{0,3}", "NUMBER": r"[1-9][0-9]{0,2}(\.[0-9]{1,2})?",
    "SIGNED_NUMBER": r"-?[1-9][0-9]{0,2}(\.[0-9]{1,2})?", "FLOAT": r"[0-9]{1,3}\.[0-9]{1,2}", "DIGIT": "[0-9]",
    "LETTER": "[a-z]", "WORD": "[a-z]{2,8}", "CNAME": "[a-z][a-z0-9]{1,7}", "WS": " ", "WS_INLINE": " ", "NEWLINE": "\n",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]", "ESCAPED_STRING": '"[a-z]{2,8}"', "HEXDIGIT": "[0-9a-f]", "DECIMAL": r"[0-9]{1,3}\.[0-9]{1,2}",
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class _Text:
    text: str


@dataclass(slots=True, frozen=True)
class _Regex:
    expression: str


@dataclass(slots=True, frozen=True)
class _Name:
    name: str


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


def text_for(definition: str, seed: int) -> str:
    """Return a text that follows the grammar, chosen by `seed`.

    Raises GrammarError, and BudgetError when reading the grammar or following it is too much work.
    """
    try:
        rules, start = _GrammarReader(definition).rules()
        return _Writer(rules, random.Random(seed)).text(start)
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None


class _GrammarReader:
    """Recursive descent over the tokens of a grammar."""

    def __init__(self, definition: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(definition):
            spend()
            match = _TOKEN.match(definition, at)
            if match is None:
                line = definition.count("\n", 0, at) + 1
                raise GrammarError(f"line {line} of the grammar cannot be read at {definition[at : at + 20]!r}")
            spend_characters(match.end() - at)
            at = match.end()
            kind = match.lastgroup or ""
            if kind not in ("space", "comment"):
                self._tokens.append((kind, match.group(0)))
        self._at = 0

    def rules(self) -> tuple[dict[str, _Node], str]:
        """Every rule by its name, and the one to start with: `start`, `root`, or the first."""
        found: dict[str, _Node] = {}
        ignored: set[str] = set()
        while (token := self._next()) is not None:
            kind, text = token
            if kind == "line":
                continue
            if kind == "directive":
                self._directive(text, found, ignored)
                continue
            if kind != "name":
                raise GrammarError(f"expected the name of a rule, not {text!r}")
            if self._peek()[0] == "priority":
                self._next()
            if (define := self._next()) is None or define[0] != "define":
                raise GrammarError(f"expected ':' or '::=' after {text!r}")
            found[text.lstrip("?!")] = self._choice()
        if not found:
            raise GrammarError("the grammar has no rules")
        start = next((name for name in ("start", "root") if name in found), next(iter(found)))
        return found, start

    def _directive(self, text: str, found: dict[str, _Node], ignored: set[str]) -> None:
        words = []
        while self._peek()[0] not in ("line", ""):
            words.append(self._next_text())
        if text == "%import":
            names = [word for word in words if word not in ("(", ")", ",")]
            module = names[0] if names else ""
            full = module.rpartition(".")[2]
            known = [full] if full in _COMMON else [name for name in names[1:] if name in _COMMON]
            alias = next((word.removeprefix("->").strip() for word in words if word.startswith("->")), None)
            if not known:
                raise GrammarError(f"%import of {' '.join(words)!r} is not known: only common.* terminals are")
            for name in known:
                found[alias or name] = _Regex(_COMMON[name])
        elif text != "%ignore":
            raise GrammarError(f"{text} is not supported")

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._continues("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _continues(self, mark: str) -> bool:
        """Whether the mark comes next, on this line or at the beginning of a later one."""
        at = self._at
        while at < len(self._tokens) and self._tokens[at][0] == "line":
            spend()
            at += 1
        if at < len(self._tokens) and self._tokens[at] == ("mark", mark):
            self._at = at + 1
            return True
        return False

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        if self._peek()[0] == "alias":
            self._next()
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        kind, text = self._peek()
        if kind == "string":
            self._next()
            start = _unescaped(text)
            if self._peek()[0] == "range":
                self._next()
                return _Regex(f"[{re.escape(start.text)}-{re.escape(_unescaped(self._next_text()).text)}]")
            return start
        if kind == "regex":
            self._next()
            return _Regex(text[1 : text.rindex("/")])
        if kind == "set":
            self._next()
            return _Regex(text)
        if kind == "name" and self._tokens[self._at + 1 : self._at + 2] != [("define", "::=")]:
            self._next()
            return _Name(text.lstrip("?!"))
        if text in ("(", "["):
            self._next()
            inner = self._choice()
            while self._peek()[0] == "line":
                self._next()
            if self._peek()[1] != (")" if text == "(" else "]"):
                raise GrammarError(f"a {text!r} is never closed")
            self._next()
            return inner if text == "(" else _Repeat(inner, 0, 1)
        if text == ".":
            self._next()
            return _Regex(".")
        return None

    def _repeated(self, item: _Node) -> _Node:
        kind, text = self._peek()
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

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self) -> tuple[str, str] | None:
        token = self._peek()
        self._at += 1
        return token if token[0] else None

    def _next_text(self) -> str:
        token = self._next()
        if token is None:
            raise GrammarError("the grammar ends in the middle of a rule")
        return token[1]


class _Writer:
    def __init__(self, rules: dict[str, _Node], rng: random.Random) -> None:
        self._rules = rules
        self._rng = rng
        self._heights = self._measure()
        self._length = 0
        self._options: dict[int, list[int]] = {}  # heights of the options of a choice, by its id

    def text(self, start: str) -> str:
        if self._heights[start] == _ENDLESS:
            raise GrammarError(f"rule {start!r} never comes to an end")
        return self._write(_Name(start), 0)

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
                raise GrammarError(f"the grammar has no rule {node.name!r}")
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

    def _write(self, node: _Node, depth: int) -> str:
        spend()
        if isinstance(node, _Text):
            text = node.text
        elif isinstance(node, _Regex):
            try:
                text = pattern.matching(node.expression, self._rng)
            except PatternError as error:
                raise GrammarError(str(error)) from None
        elif isinstance(node, _Name):
            return self._write(self._rules[node.name], depth + 1)
        elif isinstance(node, _Sequence):
            return "".join([self._write(item, depth) for item in node.items])
        elif isinstance(node, _Choice):
            heights = self._heights_of(node)
            least = min(heights)
            if depth >= _DEEP:
                options = [option for option, height in zip(node.options, heights, strict=True) if height == least]
            else:
                options = [option for option, height in zip(node.options, heights, strict=True) if height < _ENDLESS]
            return self._write(self._rng.choice(options), depth)
        else:
            most = node.least + _MORE if node.most is None else min(node.most, node.least + _MORE)
            count = node.least if depth >= _DEEP else self._rng.randint(node.least, max(node.least, most))
            spend(count)
            return "".join([self._write(node.item, depth) for _ in range(count)])
        self._length += len(text)
        if self._length > _LONGEST:
            raise GrammarError("what follows the grammar is too long")
        return text


_ENDLESS = 1 << 30


def _unescaped(written: str) -> _Text:
    text = written.removesuffix("i") if written.endswith('"i') else written
    body = text[1:-1]
    return _Text(re.sub(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", _escape, body))


def _escape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r"}.get(code, code)

"""Arithmetic that a text asks for, operation by operation: "add 3 and 4, then multiply the result by 5"."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Number = int | float


@dataclass(slots=True, frozen=True)
class Earlier:
    """An operand that is the result of another operation: its place in the list, -1 for what came before the text."""

    index: int


Operand = Number | Earlier


@dataclass(slots=True, frozen=True)
class Operation:
    """kind: add, subtract, multiply, divide, power, modulo or sqrt (of one operand)."""

    kind: str
    operands: tuple[Operand, ...]


# What tools, and the enums of calculators, call an operation.
NAMES: dict[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "add": "add plus sum addition adder +",
        "subtract": "subtract minus subtraction difference sub -",
        "multiply": "multiply times product multiplication mul *",
        "divide": "divide division quotient div /",
        "power": "power pow exponent exponentiate exponentiation raise ^ **",
        "modulo": "modulo mod modulus remainder %",
        "sqrt": "sqrt root squareroot",
    }.items()
}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "modulo": "%"}
_KINDS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power", ast.Mod: "modulo",
}  # fmt: skip
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
_COUNTED = {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split())}
_LONGEST_FORMULA = 200  # characters
_COUNTED_WORD = re.compile(rf"\b(?:{'|'.join(_COUNTED)})\b", re.IGNORECASE)
# Not arithmetic, although there are digits and signs in it.
_OTHER = re.compile(
    r"https?://\S+|\S+@\S+|\d{1,4}[-/]\d{1,2}[-/]\d{1,4}|\d+(?:\.\d+){2,}|[\w~.]*[/\\](?=[\w./\\-]*[A-Za-z])[\w/\\.-]+|"
    r"\b[A-Za-z]+-\d+\b"
)
_REWRITTEN = tuple(
    (re.compile(pattern, re.IGNORECASE), written)
    for pattern, written in (
        (r"(?<=\d),(?=\d{3}\b)", ""),
        (r"\bthe (?:sum|product|total|difference|quotient)(?! (?:of|between|from|divided)\b)", " _ "),
        (r"\b(?:the |that |this )(?:results?|outputs?|answer|number|value)(?: of (?:that|this|it))?\b", " _ "),
        (r"\bthe previous (?:result|answer|output|number)\b|\b(?:it|that|this)\b", " _ "),
        (r"\bdouble\s+_", "multiply _ by 2"),
        (r"\b(?:half|halve)\s+_", "divide _ by 2"),
        (r"(\d)\s*(?:%|percent) of\b", r"\1 / 100 *"),
        (r"\b(?:sum|product|result|value) of(?=\s+-?\d+(?:\.\d+)?\s*(?:[-+*/x×÷]|plus|minus|times))", ""),
        (r"\bplus\b", "+"),
        (r"\bminus\b", "-"),
        (r"\b(?:times|multiplied by)\b|[×·]|(?<=[\d)])\s*x\s*(?=[\d(])", "*"),
        (r"\bdivided by\b|÷|(?<=\d) over (?=\d)", "/"),
        (r"\b(?:raised )?to the power(?: of)?\b|\^", "**"),
        (r"\bsquared\b", "** 2"),
        (r"\bcubed\b", "** 3"),
        (r"(?<=\d)\s+mod(?:ulo)?\s+(?=\d)", " % "),
    )
)
_ONE = r"(-?\d+(?:\.\d+)?|_)"
_MORE = rf"(?:\s*,?\s*(?:and\s+)?{_ONE.replace('(', '(?:', 1)})*"
_FORMS: tuple[tuple[str, re.Pattern[str], bool], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE), turned)
    for kind, pattern, turned in (
        ("add", rf"\b(?:add|sum|total)\s+(?:up\s+|of\s+|together\s+|the numbers\s+)*((?:{_ONE}){_MORE})(?:\s+(?:to|"
                rf"with)\s+{_ONE})?", False),
        ("subtract", rf"\bsubtract\s+{_ONE}\s+from\s+{_ONE}", True),
        ("subtract", rf"\bdifference\s+(?:between|of)\s+{_ONE}\s+and\s+{_ONE}", False),
        ("subtract", rf"\bsubtract\s+{_ONE}()", True),
        ("multiply", rf"\b(?:multiply|product of)\s+{_ONE}\s+(?:and|by|with|\*)\s+{_ONE}", False),
        ("multiply", rf"\bmultiply\s+by\s+{_ONE}", False),
        ("divide", rf"\b(?:divide|quotient of)\s+{_ONE}\s+(?:and|by|with|/)\s+{_ONE}", False),
        ("divide", rf"\bdivide\s+by\s+{_ONE}", False),
        ("power", rf"\braise\s+{_ONE}\s+(?:to(?: the)?|\*\*)\s+{_ONE}", False),
        ("sqrt", rf"\bsquare root of\s+{_ONE}", False),
    )
)  # fmt: skip
_FORMULA = re.compile(r"[-(\s]*(?:_|\d+(?:\.\d+)?)[)\s]*(?:(?:\*\*|[-+*/%])[-(\s]*(?:_|\d+(?:\.\d+)?)[)\s]*)+")
_HALF = re.compile(rf"(?<![\d)_])\s*(\*\*|[+*/])\s*{_ONE}")  # "..., * 5": what came before is its first operand
_RESULTS: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "modulo": operator.mod,
}
_SIGN_KINDS = {sign: kind for kind, sign in _SIGNS.items()}


def operations(text: str) -> list[Operation]:
    """The operations in the order they must be done; [] for a text without any."""
    text = _OTHER.sub(" ", text)
    text = _COUNTED_WORD.sub(lambda match: _COUNTED[match[0].lower()], text)
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    found: list[Operation] = []
    at = 0
    while (match := _next(text, at)) is not None:
        kind, hit, turned = match
        at = max(hit.end(), at + 1)
        if kind == "formula":
            _formula(hit.group(), found)
        elif kind == "half":
            _add(found, _SIGN_KINDS[hit.group(1)], [hit.group(2)])
        elif kind == "add":
            last = [hit.group(3)] if hit.group(3) else []
            _add(found, kind, [*re.findall(_ONE, hit.group(1)), *last])
        else:
            written_operands = [group for group in hit.groups() if group]
            _add(found, kind, written_operands[::-1] if turned else written_operands, turned)
    return found


def _next(text: str, at: int) -> tuple[str, re.Match[str], bool] | None:
    """The match that begins first: (kind, match, whether its operands are the other way round)."""
    best: tuple[str, re.Match[str], bool] | None = None
    for kind, pattern, turned in (*_FORMS, ("formula", _FORMULA, False), ("half", _HALF, False)):
        match = pattern.search(text, at)
        if match is not None and (best is None or match.start() < best[1].start()):
            best = (kind, match, turned)
    return best


def _add(found: list[Operation], kind: str, written: list[str], turned: bool = False) -> None:
    """One operation, or a chain of them for more than two operands."""
    operands = [_operand(part, found) for part in written]
    if kind == "sqrt":
        found.append(Operation(kind, (operands[0],)))
        return
    if len(operands) == 1:
        if not found and not isinstance(operands[0], Earlier):
            return
        operands = [Earlier(len(found) - 1), operands[0]]
    for following in operands[1:]:
        found.append(Operation(kind, (operands[0], following)))
        operands[0] = Earlier(len(found) - 1)


def _operand(written: str, found: list[Operation]) -> Operand:
    if written == "_":
        return Earlier(len(found) - 1)
    value = float(written)
    return int(value) if value.is_integer() else value


def _formula(written: str, found: list[Operation]) -> None:
    if len(written) > _LONGEST_FORMULA:
        return
    try:
        tree = ast.parse(written.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # unbalanced, say
        return
    before = len(found) - 1

    def operand_of(node: ast.expr) -> Operand:
        if isinstance(node, ast.BinOp):
            left, right = operand_of(node.left), operand_of(node.right)
            found.append(Operation(_KINDS[type(node.op)], (left, right)))
            return Earlier(len(found) - 1)
        if isinstance(node, ast.UnaryOp):
            inner = operand_of(node.operand)
            return inner if isinstance(inner, Earlier) else -inner
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        return Earlier(before)

    operand_of(tree)


def written(operations: Sequence[Operation], index: int, before: str = "0") -> str:
    """The whole of operation `index` as a formula: "(3 + 4) * 5"; before: what `Earlier(-1)` stands for."""
    if index < 0:
        return before
    operation = operations[index]
    parts = [
        _bracketed(operations, operand, before) if isinstance(operand, Earlier) else f"{operand:.15g}"
        for operand in operation.operands
    ]
    return f"sqrt({parts[0]})" if operation.kind == "sqrt" else f"{parts[0]} {_SIGNS[operation.kind]} {parts[1]}"


def _bracketed(operations: Sequence[Operation], operand: Earlier, before: str) -> str:
    inner = written(operations, operand.index, before)
    return f"({inner})" if " " in inner else inner


def result(operation: Operation, values: Sequence[Number]) -> Number:
    """What an operation gives for these operands; 0 where there is no such number."""
    try:
        if operation.kind == "sqrt":
            return float(values[0]) ** 0.5 if values[0] >= 0 else 0
        left, right = values
        if operation.kind == "power":
            return float(left) ** float(right) if abs(right) < 64 and left > 0 else 0
        return _RESULTS[operation.kind](left, right)
    except (ArithmeticError, ValueError):
        return 0

"""A JSON value for a schema: always valid, readable, the same for the same seed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_server.replies.structured import pattern, strings
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.matcher import PatternError, compiled
from llmirage_server.replies.structured.schema import Resolver, Schema, SchemaError, merged, types_of
from llmirage_server.replies.structured.validity import Validator

_DEEP = 5  # levels after which everything optional is left out
_TRIES = 30
_PLAIN_TRIES = 5  # after which a value may be of any type where the schema names none
_MOST_OPTIONAL = 24  # optional properties written at most
_NUMBERS = {"number", "integer"}
_EVERY_TYPE = ("string", "number", "boolean", "object", "array", "null")


def value_for(schema: Any, seed: int, name: str = "") -> Any:
    """Return a value that is valid against the schema (draft 2020-12), chosen by `seed`; `name` is what it stands for.

    Raises SchemaError when the schema is none, when nothing satisfies it, or when no value was found that does, BudgetError
    when to find one is too much work.
    """
    validator = validator_for(schema)
    resolver = Resolver(schema)
    problem: Exception | None = None
    for attempt in range(_TRIES):
        try:
            value = Values(resolver, random.Random(f"{seed} {attempt}"), attempt >= _PLAIN_TRIES).value(schema, name)
            if validator.is_valid(value):
                return value
        except (PatternError, _NoValueError) as error:
            problem = error
        except RecursionError:
            problem = SchemaError("it only contains itself")
        except ArithmeticError:
            problem = SchemaError("its bounds are too large or too small for numbers of double precision")
    raise SchemaError(f"found no value for it{f': {problem}' if problem else ''}")


def validator_for(schema: Any) -> Validator:
    """A validator (draft 2020-12). Raises SchemaError when the schema is none."""
    return Validator(schema)


def first_problem(value: Any, schema: Any) -> str:
    """What makes a value invalid against the schema, "" if nothing does. Raises SchemaError when the schema is none."""
    return str(next(validator_for(schema).problems(value), ""))


class _NoValueError(ValueError):
    """This way there is no value; another attempt may choose another."""


class Values:
    """Writes one value after the other with one source of randomness. Each is likely valid, not certainly."""

    def __init__(self, resolver: Resolver, rng: random.Random, any_type: bool = False) -> None:
        self._resolver = resolver
        self._any_type = any_type
        self._rng = rng

    def value(self, schema: Any, name: str = "", depth: int = 0) -> Any:
        spend()
        schema = self._chosen(self._resolver.flat(schema), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            if not schema["enum"]:
                raise _NoValueError("an enum of nothing")
            return self._rng.choice(schema["enum"])
        kind = self._type(schema, name, depth)
        writer = getattr(self, f"_{kind}", None)
        if writer is None:
            raise _NoValueError(f"unknown type {kind!r}")
        return writer(schema, name, depth)

    def _chosen(self, schema: Schema, depth: int) -> Schema:
        """The schema with one of each set of alternatives taken."""
        for _ in range(8):
            if options := schema.get("anyOf") or schema.get("oneOf"):
                key = "anyOf" if schema.get("anyOf") else "oneOf"
                rest = {k: v for k, v in schema.items() if k != key}
                schema = self._resolver.flat(merged(rest, self._option(options, depth)))
            elif "if" in schema and ("then" in schema or "else" in schema):
                rest = {k: v for k, v in schema.items() if k not in ("if", "then", "else")}
                branch = (
                    merged(schema["if"], schema.get("then", True)) if self._rng.random() < 0.5 else schema.get("else", True)
                )
                schema = self._resolver.flat(merged(rest, branch))
            else:
                return schema
        return schema

    def _option(self, options: Sequence[Any], depth: int) -> Any:
        """One alternative: any but null, as a rule; the shallowest when it is deep already."""
        spend(len(options))
        heights = [self._resolver.height(option) for option in options]
        if depth >= _DEEP:
            return options[heights.index(min(heights))]
        finite = [option for option, height in zip(options, heights, strict=True) if height < math.inf] or list(options)
        kinds = [types_of(self._resolver.flat(option)) for option in finite]
        if any(set(kind) & _NUMBERS for kind in kinds):  # a number that may also be written as a string: a decimal, say
            finite = [option for option, kind in zip(finite, kinds, strict=True) if kind != ["string"] or "enum" in option]
        filled = [option for option in finite if types_of(self._resolver.flat(option)) != ["null"]]
        return self._rng.choice(filled if filled and self._rng.random() < 0.9 else finite)

    def _type(self, schema: Schema, name: str, depth: int) -> str:
        types = types_of(schema)
        if not types:
            if self._any_type:
                return self._rng.choice(_EVERY_TYPE)
            return "string" if name or depth else "object"
        filled = [kind for kind in types if kind != "null"]
        if depth >= _DEEP and "null" in types:
            return "null"
        if depth >= _DEEP:
            filled = [kind for kind in filled if kind not in ("object", "array")] or filled
        return self._rng.choice(filled) if filled else "null"

    def _null(self, schema: Schema, name: str, depth: int) -> None:
        return None

    def _boolean(self, schema: Schema, name: str, depth: int) -> bool:
        return self._rng.random() < 0.7

    def _string(self, schema: Schema, name: str, depth: int) -> str:
        least, most, form = int(schema.get("minLength", 0)), schema.get("maxLength"), schema.get("format")
        if most is not None:
            most = int(most)
            if most < least:
                raise _NoValueError(f"minLength {least} is more than maxLength {most}")
        if "pattern" in schema:
            usual = strings.FORMATS[form](self._rng) if form in strings.FORMATS else strings.by_name(name, self._rng)
            fits = least <= len(usual) and (most is None or len(usual) <= most)
            if fits and compiled(schema["pattern"]).search(usual):
                return usual
            return pattern.matching(schema["pattern"], self._rng, least, most)
        if form in strings.FORMATS:
            return strings.FORMATS[form](self._rng)
        return strings.fitted(strings.by_name(name, self._rng), least, most, self._rng)

    def _integer(self, schema: Schema, name: str, depth: int) -> int:
        step = schema.get("multipleOf", 1)
        step = step if float(step).is_integer() else 1
        return int(self._multiple(schema, int(step), name))

    def _number(self, schema: Schema, name: str, depth: int) -> float | int:
        if "multipleOf" in schema:
            return self._multiple(schema, schema["multipleOf"], name)
        low, high = _range(schema, name)
        for digits in (1, 2, 4, 8):
            value = round(self._rng.uniform(low, high), digits)
            if low < value < high:
                return value
        return low if low == high else (low + high) / 2

    def _multiple(self, schema: Schema, step: float, name: str) -> float | int:
        low, high = _range(schema, name, step)
        first, last = math.ceil(low / step), math.floor(high / step)
        if first * step <= schema.get("exclusiveMinimum", -math.inf):
            first += 1
        if last * step >= schema.get("exclusiveMaximum", math.inf):
            last -= 1
        if first > last:
            raise _NoValueError(f"no multiple of {step} from {low:g} to {high:g}")
        value = self._rng.randint(first, last) * step
        return round(value, 10) if isinstance(step, float) else value

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", 1 << 20))
        if "contains" in schema:
            least = max(least, int(schema.get("minContains", 1)))
        prefix = schema.get("prefixItems", ())
        items = schema.get("items", True)
        if isinstance(items, list):  # how drafts before 2020-12 wrote prefixItems
            prefix, items = items, schema.get("additionalItems", True)
        wanted = least if depth >= _DEEP else max(least, len(prefix), self._rng.randint(1, 3))
        if depth > 1 and items in ({}, True) and not prefix:
            wanted = least  # of anything: what a library writes where a recursive model goes on
        if depth < _DEEP and items is not True and self._resolver.height(items) == math.inf:
            wanted = least
        wanted = min(wanted, most)
        if items is False:
            wanted = min(wanted, len(prefix))
        spend(wanted)
        singular = name[:-1] if name.endswith("s") and len(name) > 3 else name
        contained = int(schema.get("minContains", 1)) if "contains" in schema else 0
        unique = bool(schema.get("uniqueItems"))
        made: list[Any] = []
        seen: set[str] = set()
        for _ in range(20 * wanted):
            if len(made) == wanted:
                break
            spend()
            item_schema = prefix[len(made)] if len(made) < len(prefix) else items
            if contained > 0 and len(made) >= len(prefix):
                item_schema = merged(item_schema, schema["contains"])
            item = self.value(item_schema, singular, depth + 1)
            text = json.dumps(item, sort_keys=True)
            if unique and text in seen:
                continue
            seen.add(text)
            made.append(item)
            contained -= 1
        return made

    def _object(self, schema: Schema, name: str, depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = dict.fromkeys(schema.get("required") or ())
        spend((len(properties) + len(required)) // 4)
        names = [key for key in properties if key in required or self._wants(properties[key], depth)]
        if not names and not depth:  # nothing is required: an empty answer would say nothing
            names = [key for key, sub in properties.items() if sub is not False and self._resolver.height(sub) < math.inf]
        optional = [key for key in names if key not in required]
        dropped = set(optional[_MOST_OPTIONAL:])
        names = [key for key in names if key not in dropped]
        names += [key for key in required if key not in properties]
        for key, needed in (schema.get("dependentRequired") or {}).items():
            spend(1 + (len(needed) + len(names)) // 16)
            if key in names:
                names = list(dict.fromkeys([*names, *needed]))
        if (too_many := len(names) - int(schema.get("maxProperties", 1 << 20))) > 0:
            extra = set([key for key in names if key not in required][-too_many:])
            names = [key for key in names if key not in extra]
        made = {key: self.value(self._property(schema, key), key, depth + 1) for key in names}
        self._fill(schema, made, depth)
        for key, demand in (schema.get("dependentSchemas") or {}).items():
            if key in made:
                made = {**self._object(self._resolver.flat(merged({**schema, "dependentSchemas": {}}, demand)), name, depth)}
        return made

    def _wants(self, schema: Any, depth: int) -> bool:
        """Whether an optional property is written."""
        if schema is False or depth >= _DEEP:
            return False
        height = self._resolver.height(schema)
        if height == math.inf or (height > 0 and depth >= _DEEP - 2):
            return False
        return self._rng.random() < 0.8

    def _property(self, schema: Schema, key: str) -> Any:
        """What the value of a property must be."""
        spend()
        demands = [sub for expression, sub in (schema.get("patternProperties") or {}).items()
                   if compiled(expression).search(key)]  # fmt: skip
        if key in (schema.get("properties") or {}):
            demands.append(schema["properties"][key])
        if not demands:
            demands.append(schema.get("additionalProperties", True))
        result = demands[0]
        for demand in demands[1:]:
            result = merged(result, demand)
        return result

    def _fill(self, schema: Schema, made: dict[str, Any], depth: int) -> None:
        """Add properties of free names where the schema asks for more, or is nothing but a map."""
        wanted = int(schema.get("minProperties", 0))
        additional = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties") or {}
        free = (isinstance(additional, Mapping) and additional) or patterns
        if not made and free and not schema.get("properties") and depth < _DEEP:
            wanted = max(wanted, min(2, int(schema.get("maxProperties", 2))))
        spend(wanted)
        for _ in range(20 * wanted):
            if len(made) >= wanted:
                return
            spend()
            if "propertyNames" in schema:
                key = self.value(merged({"type": "string"}, schema["propertyNames"]), "key", depth + 1)
            elif patterns and (additional is False or self._rng.random() < 0.5):
                key = pattern.matching(self._rng.choice(list(patterns)), self._rng)
            else:
                key = strings.by_name("tag", self._rng)
            if key not in made:
                made[key] = self.value(self._property(schema, key), key, depth + 1)


def _range(schema: Schema, name: str, step: float = 1.0) -> tuple[float, float]:
    """From where to where a number may lie: what its bounds leave of what is usual for its name."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low, high = max(lows, default=-math.inf), min(highs, default=math.inf)
    usual_low, usual_high = _usual_range(name)
    if max(low, usual_low) + step <= min(high, usual_high):
        return max(low, usual_low), min(high, usual_high)
    if low == -math.inf:
        low = high - max(10 * step, abs(high))
    if high == math.inf:
        high = low + max(10 * step, abs(low))
    if low > high:
        raise _NoValueError(f"no number from {low:g} to {high:g}")
    return low, high


def _usual_range(name: str) -> tuple[float, float]:
    """What numbers of this name are usually like."""
    lower = name.lower()
    for words, low, high in (
        (("year",), 1990, 2030),
        (("month",), 1, 12),
        (("day",), 1, 28),
        (("age",), 18, 80),
        (("lat",), -60, 60),
        (("lon", "lng"), -150, 150),
        (("temperature", "celsius"), -5, 35),
        (("percent",), 0, 100),
        (("confidence", "probability", "score", "ratio", "rate"), 0, 1),
        (("price", "cost", "amount", "total"), 5, 500),
        (("count", "number", "quantity", "size", "length"), 1, 20),
    ):
        if any(word in lower for word in words):
            return float(low), float(high)
    return 1.0, 100.0

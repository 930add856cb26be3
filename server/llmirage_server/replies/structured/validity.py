"""Validation against a schema of draft 2020-12, in a bounded number of steps, in python-jsonschema's words."""

from __future__ import annotations

import marshal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.keywords import CHECKS, kind_of
from llmirage_server.replies.structured.matcher import compiled
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_server.replies.structured.schema import Placed, Resolver, SchemaError, Scope
from llmirage_server.replies.structured.schema_check import check_schema, shown

_WITHOUT_REFERENCES = 2  # the version of marshal's format that writes equal values equally
_MOST_KEPT, _MOST_KEPT_BYTES = 100, 20_000  # of validators of a thread, and of their schemas


@dataclass(slots=True, frozen=True)
class Invalidity:
    """One reason why a value is invalid. path: to the part of the value that is; keyword: of the schema that says so."""

    message: str
    path: tuple[str | int, ...]
    keyword: str
    instance: Any

    def __str__(self) -> str:
        path = ".".join(map(str, self.path))
        return f"{path}: {self.message}" if path else self.message


class Validator:
    """One schema, for any number of values. Formats are asserted."""

    def __init__(self, schema: Any) -> None:
        """Compile the schema. Raises SchemaError when it is none."""
        check_schema(schema)
        self.schema = schema
        self.resolver = Resolver(schema, check_schema)

    def is_valid(self, value: Any, part: Any = None, scope: Scope | None = None) -> bool:
        """Return True if nothing is wrong with the value.

        part: validate against this part of the schema instead; scope: that of the part. Raises SchemaError for references
        that lead nowhere and for regular expressions that are not supported.
        """
        return next(self.problems(value, part, scope), None) is None

    def problems(self, value: Any, part: Any = None, scope: Scope | None = None) -> Iterator[Invalidity]:
        """Yield what is wrong with the value, in the order of the schema. Raises as `is_valid`."""
        try:
            validation = _Validation(self.resolver)
            yield from validation.problems(self.schema if part is None else part, value, scope or self.resolver.scope)
        except RecursionError:
            raise SchemaError("value and schema are nested too deeply") from None
        except PatternError as error:
            raise SchemaError(str(error)) from None


def validator_for(schema: Any) -> Validator:
    """Return a validator of the schema, or of an equal one: agents send the same tools each time. Raises SchemaError."""
    try:
        written = marshal.dumps(schema, _WITHOUT_REFERENCES)
    except ValueError:  # it has a value that JSON does not have
        return Validator(schema)
    known = _kept.validators
    validator = known.get(written)
    if validator is None:
        validator = Validator(schema)
        if len(written) <= _MOST_KEPT_BYTES:
            if len(known) >= _MOST_KEPT:
                known.clear()
            known[written] = validator
    return validator


def first_problem(value: Any, schema: Any) -> str:
    """Return what makes a value invalid against the schema, "" if nothing does. Raises SchemaError for what is no schema."""
    return str(next(validator_for(schema).problems(value), ""))


class _KeptValidators(threading.local):
    """The last validators of a thread."""

    def __init__(self) -> None:
        self.validators: dict[bytes, Validator] = {}


_kept = _KeptValidators()


class _Validation:
    """The validation of one value. What was found behind a reference is kept: else some schemas take exponential time."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._found: dict[tuple[int, int, Scope], list[Invalidity] | None] = {}  # None: in progress

    def problems(self, schema: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        spend()
        if schema is True:
            return
        if schema is False:
            yield Invalidity(f"False schema does not allow {shown(value)}", (), "", value)
            return
        if "$id" in schema:
            scope = self._resolver.entered(schema, scope)
        kind = kind_of(value)
        for keyword, demand in schema.items():
            if (check := CHECKS[kind].get(keyword)) is not None and (message := check(demand, value)):
                yield Invalidity(message, (), keyword, value)
            elif (apply := _APPLICATORS.get(keyword)) is not None and apply[0] in ("", kind):
                yield from apply[1](self, schema, demand, value, scope)

    def is_valid(self, schema: Any, value: Any, scope: Scope) -> bool:
        return next(self.problems(schema, value, scope), None) is None

    def _inside(self, schema: Any, value: Any, scope: Scope, key: str | int) -> Iterator[Invalidity]:
        for problem in self.problems(schema, value, scope):
            yield replace(problem, path=(key, *problem.path))

    def _reference(self, schema: Any, demand: str, value: Any, scope: Scope) -> Iterator[Invalidity]:
        yield from self._behind(*self._resolver.target(demand, scope), value)

    def _dynamic_reference(self, schema: Any, demand: str, value: Any, scope: Scope) -> Iterator[Invalidity]:
        yield from self._behind(*self._resolver.dynamic_target(demand, scope), value)

    def _behind(self, target: Any, scope: Scope, value: Any) -> Iterator[Invalidity]:
        place = (id(target), id(value), scope)
        if place not in self._found:
            self._found[place] = None
            self._found[place] = list(self.problems(target, value, scope))
        found = self._found[place]
        if found is None:
            raise SchemaError("its references never come to an end")
        yield from found

    def _all_of(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for part in demand:
            yield from self.problems(part, value, scope)

    def _any_of(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        if not any(self.is_valid(part, value, scope) for part in demand):
            yield Invalidity(f"{shown(value)} is not valid under any of the given schemas", (), "anyOf", value)

    def _one_of(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        fitting = [part for part in demand if self.is_valid(part, value, scope)]
        if not fitting:
            yield Invalidity(f"{shown(value)} is not valid under any of the given schemas", (), "oneOf", value)
        elif len(fitting) > 1:
            listed = ", ".join([shown(part) for part in [*fitting[1:], fitting[0]]])
            yield Invalidity(f"{shown(value)} is valid under each of {listed}", (), "oneOf", value)

    def _not(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        if self.is_valid(demand, value, scope):
            yield Invalidity(f"{shown(value)} should not be valid under {shown(demand)}", (), "not", value)

    def _if(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        yield from self.problems(schema.get("then" if self.is_valid(demand, value, scope) else "else", True), value, scope)

    def _properties(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for name, part in demand.items():
            if name in value:
                yield from self._inside(part, value[name], scope, name)

    def _pattern_properties(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for pattern, part in demand.items():
            for name, inner in value.items():
                if compiled(pattern).has(name):
                    yield from self._inside(part, inner, scope, name)

    def _additional_properties(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        patterns = schema.get("patternProperties") or {}
        known = schema.get("properties") or {}
        extras = [
            name for name in value if name not in known and not any(compiled(pattern).has(name) for pattern in patterns)
        ]
        if demand is not False:
            for name in extras:
                yield from self._inside(demand, value[name], scope, name)
        elif extras and patterns:
            verb = "does" if len(extras) == 1 else "do"
            listed = ", ".join(map(repr, sorted(patterns)))
            message = f"{', '.join(map(repr, sorted(extras)))} {verb} not match any of the regexes: {listed}"
            yield Invalidity(message, (), "additionalProperties", value)
        elif extras:
            message = f"Additional properties are not allowed ({_listed(sorted(extras))} unexpected)"
            yield Invalidity(message, (), "additionalProperties", value)

    def _property_names(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for name in value:
            yield from self.problems(demand, name, scope)

    def _dependent_schemas(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for name, part in demand.items():
            if name in value:
                yield from self.problems(part, value, scope)

    def _dependencies(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        """Check what drafts before 2019-09 write for dependentSchemas and dependentRequired."""
        for name, part in demand.items():
            if name not in value:
                continue
            if not isinstance(part, list):
                yield from self.problems(part, value, scope)
            elif (missing := next((each for each in part if each not in value), None)) is not None:
                yield Invalidity(f"{missing!r} is a dependency of {name!r}", (), "dependencies", value)

    def _prefix_items(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        for index, (part, inner) in enumerate(zip(demand, value, strict=False)):
            yield from self._inside(part, inner, scope, index)

    def _items(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        first = len(schema.get("prefixItems") or ())
        extra = len(value) - first
        if demand is False and extra > 0:
            rest = value[first:] if extra != 1 else value[first]
            items = "items" if first != 1 else "item"
            message = f"Expected at most {first} {items} but found {extra} extra: {shown(rest)}"
            yield Invalidity(message, (), "items", value)
        elif demand is not False:
            for index in range(first, len(value)):
                yield from self._inside(demand, value[index], scope, index)

    def _contains(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        matches = sum([self.is_valid(demand, inner, scope) for inner in value])
        least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
        if matches > most:
            message = f"Too many items match the given schema (expected at most {most})"
            yield Invalidity(message, (), "maxContains", value)
        elif matches < least and not matches:
            message = f"{shown(value)} does not contain items matching the given schema"
            yield Invalidity(message, (), "contains", value)
        elif matches < least:
            message = f"Too few items match the given schema (expected at least {least} but only {matches} matched)"
            yield Invalidity(message, (), "minContains", value)

    def _unevaluated_properties(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        seen = self._evaluated(schema, value, scope)
        left = sorted([name for name in value if name not in seen and not self.is_valid(demand, value[name], scope)])
        if left and demand is False:
            message = f"Unevaluated properties are not allowed ({_listed(left)} unexpected)"
            yield Invalidity(message, (), "unevaluatedProperties", value)
        elif left:
            message = (
                f"Unevaluated properties are not valid under the given schema ({_listed(left)} unevaluated and invalid)"
            )
            yield Invalidity(message, (), "unevaluatedProperties", value)

    def _unevaluated_items(self, schema: Any, demand: Any, value: Any, scope: Scope) -> Iterator[Invalidity]:
        seen = self._evaluated(schema, value, scope)
        left = [inner for index, inner in enumerate(value) if index not in seen and not self.is_valid(demand, inner, scope)]
        if left:
            message = f"Unevaluated items are not allowed ({_listed(left)} unexpected)"
            yield Invalidity(message, (), "unevaluatedItems", value)

    def _evaluated(self, schema: Any, value: Any, scope: Scope, inner: bool = False) -> set[str | int]:
        """Return the names of properties, or the indexes of items, that the schema evaluates, `unevaluated...` aside."""
        spend()
        if not isinstance(schema, Mapping):
            return set()
        if "$id" in schema:
            scope = self._resolver.entered(schema, scope)
        found: set[str | int] = set()
        if isinstance(value, Mapping):
            if "additionalProperties" in schema or (inner and "unevaluatedProperties" in schema):
                return set(value)
            found |= value.keys() & (schema.get("properties") or {}).keys()
            for pattern in schema.get("patternProperties") or ():
                found |= {name for name in value if compiled(pattern).has(name)}
        elif "items" in schema or (inner and "unevaluatedItems" in schema):
            return set(range(len(value)))
        else:
            found |= set(range(min(len(value), len(schema.get("prefixItems") or ()))))
            if "contains" in schema:
                found |= {index for index, each in enumerate(value) if self.is_valid(schema["contains"], each, scope)}
        for part, place in self._applied(schema, value, scope):
            found |= self._evaluated(part, value, place, True)
        return found

    def _applied(self, schema: Any, value: Any, scope: Scope) -> Iterator[Placed]:
        """Yield the schemas that a schema applies to the same value, and that it fits."""
        yield from self._resolver.referred(schema, scope)
        parts = [
            part
            for key in ("allOf", "anyOf", "oneOf")
            for part in schema.get(key) or ()
            if self.is_valid(part, value, scope)
        ]
        if "if" in schema:
            holds = self.is_valid(schema["if"], value, scope)
            parts += [schema["if"], schema.get("then", True)] if holds else [schema.get("else", True)]
        if isinstance(value, Mapping):
            parts += [part for name, part in (schema.get("dependentSchemas") or {}).items() if name in value]
            parts += [part for name, part in (schema.get("dependencies") or {}).items() if name in value]
        yield from ((part, scope) for part in parts)


_Apply = Callable[[_Validation, Any, Any, Any, Scope], Iterator[Invalidity]]
_APPLICATORS: dict[str, tuple[str, _Apply]] = {  # the type of value that a keyword speaks of ("": all of them)
    "$ref": ("", _Validation._reference), "$dynamicRef": ("", _Validation._dynamic_reference),
    "allOf": ("", _Validation._all_of), "anyOf": ("", _Validation._any_of), "oneOf": ("", _Validation._one_of),
    "not": ("", _Validation._not), "if": ("", _Validation._if),
    "properties": ("object", _Validation._properties), "patternProperties": ("object", _Validation._pattern_properties),
    "additionalProperties": ("object", _Validation._additional_properties),
    "propertyNames": ("object", _Validation._property_names),
    "dependentSchemas": ("object", _Validation._dependent_schemas), "dependencies": ("object", _Validation._dependencies),
    "unevaluatedProperties": ("object", _Validation._unevaluated_properties),
    "prefixItems": ("array", _Validation._prefix_items), "items": ("array", _Validation._items),
    "contains": ("array", _Validation._contains), "unevaluatedItems": ("array", _Validation._unevaluated_items),
}  # fmt: skip


def _listed(names: list[Any]) -> str:
    return f"{', '.join(map(shown, names))} {'was' if len(names) == 1 else 'were'}"

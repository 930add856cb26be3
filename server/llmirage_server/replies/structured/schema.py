"""JSON Schema (draft 2020-12), read for writing: where references lead, and how deep a value must at least be."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from llmirage_server.replies.structured.budget import spend

Schema = Mapping[Any, Any]
# The URIs of the schema resources that were entered on the way to a schema, the outermost first; its own is the last.
Scope = tuple[str, ...]
Placed = tuple[Any, Scope]  # a schema and its scope

# Keywords by what stands at them: a schema, schemas by name, a list of schemas.
ONE_SCHEMA = frozenset(("items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not",
                        "unevaluatedItems", "unevaluatedProperties", "contentSchema"))  # fmt: skip
SCHEMAS_BY_NAME = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
SCHEMA_LIST = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_HOLDS = dict.fromkeys(ONE_SCHEMA, "schema") | dict.fromkeys(SCHEMAS_BY_NAME | SCHEMA_LIST, "schemas")

_MOST_OUTLINED = 64  # references and `allOf` parts followed for an outline


class SchemaError(ValueError):
    """The schema cannot be followed; `path` says where."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class Resolver:
    """Follows the references of one schema document."""

    def __init__(self, root: Any, check: Callable[[Any], None]) -> None:
        """check: raises SchemaError for what is no schema; the root has passed it, unlike what unknown keywords hold."""
        self._root = root
        self._check = check
        self._checked: set[int] = set()
        uri = root.get("$id", "") if isinstance(root, Mapping) else ""
        self.scope: Scope = (urldefrag(uri)[0],)  # of the root
        self._resources: dict[str, Any] = {self.scope[0]: root}
        self._anchors: dict[tuple[str, str], Any] | None = None  # by URI of the resource and name, when first asked for
        self._dynamic: dict[tuple[str, str], Any] = {}
        self._heights: dict[int, float] = {}

    def entered(self, schema: Schema, scope: Scope) -> Scope:
        """Return the scope within a schema that has an `$id`."""
        uri = urldefrag(urljoin(scope[-1], schema["$id"]))[0]
        return scope if uri == scope[-1] else (*scope, uri)

    def target(self, reference: str, scope: Scope) -> Placed:
        """Return where a `$ref` leads. Raises SchemaError for one that does not lead into this document."""
        spend()
        resource, fragment = self._resource(reference, scope)
        if fragment and not fragment.startswith("/"):
            return self._named(reference, resource, fragment), self._within(resource, scope)
        found = self._resources[resource]
        spend(fragment.count("/"))
        holds = "schema"  # what is expected at the place that the pointer has reached
        for part in fragment.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise SchemaError(f"the reference {reference!r} points to nothing")
            if holds == "schema":
                holds = _HOLDS.get(key, "anything")
            elif holds == "schemas":
                holds = "schema"
            if holds == "schema" and isinstance(found, Mapping) and "$id" in found:
                resource = self.entered(found, (resource,))[-1]
        if holds != "schema" and id(found) not in self._checked:
            self._check(found)
            self._checked.add(id(found))
        return found, self._within(resource, scope)

    def dynamic_target(self, reference: str, scope: Scope) -> Placed:
        """Return where a `$dynamicRef` leads: to the outermost resource of the scope that has its dynamic anchor."""
        resource, fragment = self._resource(reference, scope)
        if fragment and not fragment.startswith("/"):
            self._named(reference, resource, fragment)
            if (resource, fragment) in self._dynamic:
                outermost = next(uri for uri in (*scope, resource) if (uri, fragment) in self._dynamic)
                return self._dynamic[outermost, fragment], self._within(outermost, scope)
        return self.target(reference, scope)

    def referred(self, schema: Schema, scope: Scope) -> Iterator[Placed]:
        """Yield where the references of a schema itself lead."""
        for keyword, follow in (("$ref", self.target), ("$dynamicRef", self.dynamic_target)):
            if keyword in schema:
                yield follow(schema[keyword], scope)

    def _resource(self, reference: str, scope: Scope) -> tuple[str, str]:
        """Return the URI of the resource that a reference leads to, and the rest of it."""
        uri, fragment = scope[-1], reference[1:]
        if not reference.startswith("#"):
            uri, fragment = urldefrag(urljoin(uri, reference))
        if uri not in self._resources:
            self._find_names()
        if uri not in self._resources:
            raise SchemaError(f"the reference {reference!r} does not point into this schema")
        return uri, unquote(fragment)

    @staticmethod
    def _within(resource: str, scope: Scope) -> Scope:
        return scope if resource == scope[-1] else (*scope, resource)

    def _named(self, reference: str, resource: str, name: str) -> Any:
        found = self._find_names().get((resource, name))
        if found is None:
            raise SchemaError(f"the reference {reference!r} points to nothing")
        return found

    def _find_names(self) -> dict[tuple[str, str], Any]:
        """Return the schemas with an `$anchor`, and find those with an `$id`."""
        if self._anchors is None:
            anchors: dict[tuple[str, str], Any] = {}  # kept when it is complete: the steps may end before
            pending: list[tuple[Any, str]] = [(self._root, self.scope[0])]
            while pending:
                spend()
                schema, uri = pending.pop()
                if not isinstance(schema, Mapping):
                    continue
                if "$id" in schema:
                    uri = self.entered(schema, (uri,))[-1]
                    self._resources.setdefault(uri, schema)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if keyword in schema:
                        anchors[uri, schema[keyword]] = schema
                if "$dynamicAnchor" in schema:
                    self._dynamic[uri, schema["$dynamicAnchor"]] = schema
                pending += [(inner, uri) for inner in subschemas(schema)]
            self._anchors = anchors
        return self._anchors

    def outline(self, schema: Any) -> Schema:
        """Return what a schema and those that it refers to say, as far as one schema can say it: what a value may look like.

        References that cannot be followed say nothing, and of keywords that several have the outermost counts.
        """
        if isinstance(schema, Mapping) and "$ref" not in schema and "allOf" not in schema:
            return schema
        outline: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: dict[str, None] = {}
        pending = [schema]
        for _ in range(_MOST_OUTLINED):
            if not pending:
                break
            spend()
            part = pending.pop()
            if not isinstance(part, Mapping):
                continue
            if "$ref" in part:
                with contextlib.suppress(SchemaError):
                    pending.append(self.target(part["$ref"], self.scope)[0])
            pending += reversed(part.get("allOf", ()))
            properties = {**part.get("properties", {}), **properties}
            required |= dict.fromkeys(part.get("required", ()))
            outline = {**part, **outline}
        more = {"properties": properties} if properties else {}
        return {**outline, **more, **({"required": list(required)} if required else {})}

    # --- how deep a value must be ---

    def height(self, schema: Any, scope: Scope) -> float:
        """Return the levels of objects and arrays that a value needs at least; inf while it only contains itself."""
        if not isinstance(schema, Mapping):
            return 0.0
        key = id(schema)
        if (known := self._heights.get(key)) is not None:
            return known
        spend(2)
        self._heights[key] = math.inf  # what contains itself is not finite that way
        try:
            height = self._height(schema, self.entered(schema, scope) if "$id" in schema else scope)
        finally:
            del self._heights[key]
        if height < math.inf:  # it may be infinite only because an outer one is being measured
            self._heights[key] = height
        return height

    def _height(self, schema: Schema, scope: Scope) -> float:
        if "enum" in schema or "const" in schema:
            return 0.0
        heights = [0.0, *[self.height(*placed) for placed in self.referred(schema, scope)]]
        heights += [self.height(part, scope) for part in schema.get("allOf", ())]
        choices = [schema[key] for key in ("anyOf", "oneOf") if schema.get(key)]
        heights += [min([self.height(option, scope) for option in options]) for options in choices]
        types = types_of(schema)
        if types and not set(types) <= {"object", "array"}:
            return max(heights)
        within = []
        properties = schema.get("properties") or {}
        within += [self.height(properties[name], scope) for name in schema.get("required") or () if name in properties]
        if types == ["array"] and (least := schema.get("minItems", 0)) > 0:
            prefix = schema.get("prefixItems", ())
            within += [self.height(item, scope) for item in prefix[: int(least)]]
            if len(prefix) < least and isinstance(schema.get("items"), Mapping):
                within.append(self.height(schema["items"], scope))
        return max(*heights, 1 + max(within)) if within else max(heights)


def subschemas(schema: Schema) -> Iterator[Any]:
    """Yield the schemas that stand at a schema's keywords."""
    for keyword, value in schema.items():
        if keyword in ONE_SCHEMA:
            yield value
        elif keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif keyword in SCHEMA_LIST and isinstance(value, list):
            yield from value


def equal(left: Any, right: Any) -> bool:
    """Return True if two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    spend()
    if left is right:
        return True
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(key in right and equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def types_of(schema: Schema) -> list[str]:
    """Return the types a schema allows, as written or as its other keywords suggest; [] when it says nothing."""
    written = schema.get("type")
    if isinstance(written, str):
        return [written]
    if isinstance(written, list):
        return [name for name in written if isinstance(name, str)]
    for name, keywords in _SUGGEST.items():
        if not schema.keys().isdisjoint(keywords):
            return [name]
    return []


_SUGGEST = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}

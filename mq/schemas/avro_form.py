"""The one form of an Avro schema's text: what Avro's own library for Java writes (SPEC TYPE-20).

Clients in Java send the text that this library makes of a schema, others the text that somebody wrote, where attributes
are in any order and names may be written in more than one way. Confluent's registry has one id for them, and so has
this one.
What is not as a schema should be stays as it is: whether it is a schema is judged elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["avro_form"]

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
#: Names that a type cannot be referred to by without its namespace.
_TAKEN: Final = _PRIMITIVES | {"record", "error", "enum", "fixed", "array", "map", "union"}
#: The attributes of each kind behind its name, in their order; others follow as they are, then the aliases.
_NAMED: Final = {
    "record": ("doc", "fields"),
    "error": ("doc", "fields"),
    "enum": ("doc", "symbols", "default"),
    "fixed": ("doc", "size"),
}
_INNER: Final = {"array": "items", "map": "values"}
_FIELD: Final = ("name", "type", "doc", "default", "order", "aliases")


def avro_form(document: Any, *, normalize: bool) -> Any:
    """Return a schema with its attributes in their order, names in their shortest form, and nothing that says nothing.

    With `normalize` all attributes that Avro has no order for are sorted as well, and so are aliases.
    """
    return _Form(normalize).of(document, "")


class _Form:
    """Makes the form of one schema."""

    def __init__(self, normalize: bool) -> None:
        self._normalize = normalize

    def of(self, schema: Any, space: str) -> Any:
        """Return the form of what stands where a type does, within a namespace."""
        if isinstance(schema, str):
            return _shortest(schema, space)
        if isinstance(schema, list):
            return [self.of(branch, space) for branch in schema]
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(kind, str):
            return schema
        if kind in _NAMED:
            return self._named(schema, kind, space)
        if kind in _INNER:
            inner = _INNER[kind]
            first = {name: schema[name] for name in ("type", inner) if name in schema}
            if inner in first:
                first[inner] = self.of(first[inner], space)
            return {**first, **self._rest(schema, first)}
        if len(schema) == 1:
            return _shortest(kind, space)
        return {"type": kind, **self._rest(schema, ("type",))} if kind in _PRIMITIVES else schema

    def _named(self, schema: dict[str, Any], kind: str, space: str) -> Any:
        given, within = schema.get("name"), schema.get("namespace")
        if not isinstance(given, str) or not (within is None or isinstance(within, str)):
            return schema
        own, dot, name = given.rpartition(".")
        own = own if dot else space if within is None else within
        form: dict[str, Any] = {"type": kind, "name": name}
        if own != space:
            form["namespace"] = own
        form |= {attribute: schema[attribute] for attribute in _NAMED[kind] if attribute in schema}
        if isinstance(form.get("fields"), list):
            form["fields"] = [self._field(field, own) for field in form["fields"]]
        form |= self._rest(schema, (*form, "namespace", "aliases"))
        if "aliases" in schema:
            form["aliases"] = self._aliases(schema["aliases"], own)
        return form

    def _field(self, field: Any, space: str) -> Any:
        if not isinstance(field, dict):
            return field
        form = {attribute: field[attribute] for attribute in _FIELD if attribute in field}
        if "type" in form:
            form["type"] = self.of(form["type"], space)
        if "default" in form:
            form["default"] = self._sorted(form["default"])
        if form.get("order") == "ascending":
            del form["order"]
        if "aliases" in form:
            form["aliases"] = self._aliases(form["aliases"], "")
        return {**form, **self._rest(field, _FIELD)}

    def _aliases(self, aliases: Any, space: str) -> Any:
        if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
            return aliases
        whole = [f"{space}.{one}" if space and "." not in one else one for one in aliases]
        whole = sorted(set(whole)) if self._normalize else list(dict.fromkeys(whole))
        return [_shortest(one, space) for one in whole]

    def _rest(self, schema: dict[str, Any], but: Any) -> dict[str, Any]:
        rest = {name: value for name, value in schema.items() if name not in but}
        return dict(self._sorted(rest))

    def _sorted(self, value: Any) -> Any:
        if not self._normalize:
            return value
        if isinstance(value, list):
            return [self._sorted(one) for one in value]
        return {name: self._sorted(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


def _shortest(name: str, space: str) -> str:
    """Return how a type is named within a namespace: without it if it has the same."""
    own, dot, simple = name.rpartition(".")
    return simple if dot and own and own == space and simple not in _TAKEN else name

"""Bodies as columns by compiled functions (`avro.c`, `json.c`, `protobuf.c`), where they could be compiled.

Bodies that they leave to the plain twin (`Reason.ASK`) are decoded by it row by row. So the cost of a body that does
not fit is bounded, and does not touch the others.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.mq.schemas.limits import TYPED_CELLS_MIN, TYPED_CELLS_PER_BYTE_MAX
from deltamq.tables.compiled import library_path
from deltamq.tables.typed.json.value import END_US, FIRST_DAY, FIRST_US, LAST_DAY
from deltamq.tables.typed.misfit import Misfit, Reason, place, senders_name
from deltamq.tables.typed.node import Child, Node

#: Columns without a fixed width, as `enum layout` numbers them.
_STRUCT: Final = 0
_BITS: Final = -1
_TEXT: Final = -2
_LIST: Final = -3
#: `enum flag`.
_NULLABLE: Final = 1
_REQUIRED: Final = 2
_CLOSED: Final = 4
_WRAPPED: Final = 8
_NO_UNION: Final = -2

_DAY_US: Final = 86_400_000_000
_INT64: Final = (-(2**63), 2**63 - 1, 1)
_TIMES: Final = (FIRST_US, END_US - 1)
#: The first and the last value of a form of whole numbers, and what one of them is in the column.
_RANGES: Final[Mapping[str, tuple[int, int, int]]] = {
    "int": (-(2**31), 2**31 - 1, 1),
    "date": (FIRST_DAY, LAST_DAY, 1),
    "time-millis": (0, _DAY_US - 1, 1_000),
    "time-micros": (0, _DAY_US - 1, 1),
    "timestamp-millis": (*_TIMES, 1_000),
    "timestamp-micros": (*_TIMES, 1),
    "local-timestamp-millis": (*_TIMES, 1_000),
    "local-timestamp-micros": (*_TIMES, 1),
    "timestamp": (*_TIMES, 1),
    "local-timestamp": (*_TIMES, 1),
    "int32": (-(2**31), 2**31 - 1, 1),
    "uint32": (0, 2**32 - 1, 1),
    "sint32": (-(2**31), 2**31 - 1, 1),
    "fixed32": (0, 2**32 - 1, 1),
    "sfixed32": (-(2**31), 2**31 - 1, 1),
}
#: The number of each form in `enum form` of the source.
AVRO_FORMS: Final[Mapping[str, int]] = {
    "boolean": 0,
    **dict.fromkeys(("int", "long", "date", "time-millis", "time-micros"), 1),
    **dict.fromkeys((f"{start}timestamp-{unit}" for start in ("", "local-") for unit in ("millis", "micros")), 1),
    "float": 2,
    "double": 3,
    "bytes": 4,
    "string": 5,
    "fixed": 6,
    "enum": 7,
    "decimal": 8,
    "uint32": 9,
    "struct": 10,
    "union": 11,
    "list": 12,
    "map": 13,
}
JSON_FORMS: Final[Mapping[str, int]] = {
    "boolean": 0,
    "whole": 1,
    "real": 2,
    "decimal": 3,
    "string": 4,
    "base64": 5,
    "date": 6,
    "timestamp": 7,
    "local-timestamp": 7,
    "json": 8,
    "struct": 9,
    "list": 10,
    "map": 11,
}
PROTOBUF_FORMS: Final[Mapping[str, int]] = {
    "bool": 0,
    **dict.fromkeys(("int32", "int64", "uint32", "uint64"), 1),
    **dict.fromkeys(("sint32", "sint64"), 2),
    **dict.fromkeys(("fixed32", "fixed64", "sfixed32", "sfixed64"), 3),
    "float": 4,
    "double": 5,
    "bytes": 6,
    "string": 7,
    "enum": 8,
    "timestamp": 9,
    "struct": 10,
    "list": 11,
    "map": 12,
}
#: Numbers of `struct node`.
_NUMBERS: Final = 18


class Plan(NamedTuple):
    """A schema as a decoder takes it; all of it has to outlive the calls."""

    nodes: array[int]
    node_count: int
    text_ends: array[int]
    texts: pa.Buffer
    #: For each node the names on the way to it, None for the place of an element.
    paths: list[tuple[str | None, ...]]

    def path(self, node: int, places: list[int]) -> list[str]:
        """Return the parts of the path to a node; `places` are those of elements, the innermost first."""
        left = list(places)
        return [place(left.pop()) if part is None else part for part in self.paths[node]]


class _Part(NamedTuple):
    """A node of the plan before it has a place."""

    child: Child
    node: Node
    path: tuple[str | None, ...]
    is_below_list: bool
    null: int = _NO_UNION
    is_wrapped: bool = False
    parent: int = 0


def plan_of(root: Node, forms: Mapping[str, int]) -> Plan:
    """Return the plan of a schema for the source with these forms."""
    nodes, numbers, texts, paths = array("q"), array("q"), [b""], []
    parts = [_part(Child("", root), (), False)]
    for number, part in enumerate(parts):
        children = _children(part)
        names = part.node.symbols or tuple(child.child.name for child in children)
        nodes.extend(_numbers(part, forms, (len(parts), len(children)), (len(texts) - 1, len(names)), len(numbers)))
        numbers.extend(part.node.numbers)
        texts += [name.encode() for name in names]
        paths.append(part.path)
        parts += [child._replace(parent=number) for child in children]
    ends = array("i", [0])
    for text in texts[1:]:
        ends.append(ends[-1] + len(text))
    assert len(nodes) == _NUMBERS * len(parts), "a number for each field of the struct"
    return Plan(nodes + numbers, len(parts), ends, pa.py_buffer(b"".join(texts)), paths)


def _part(child: Child, path: tuple[str | None, ...], is_below_list: bool) -> _Part:
    node = child.node
    if node.form == "nullable":
        return _Part(child, node.children[0].node, path, is_below_list, node.size)
    if node.form == "wrapper":
        return _Part(child, node.children[0].node, path, is_below_list, is_wrapped=True)
    return _Part(child, node, path, is_below_list)


def _children(part: _Part) -> list[_Part]:
    node, path = part.node, part.path
    if node.form == "list":
        return [_part(node.children[0], (*path, None), True)]
    if node.form == "map":
        return [_Part(Child("", _entries(node)), _entries(node), path, True)]
    if node.form == "entries":
        return [_part(child, path, True) for child in node.children]
    return [_part(child, (*path, child.name), part.is_below_list) for child in node.children]


def _entries(node: Node) -> Node:
    """The structs of names and values that a map's column has."""
    value, *keys = node.children
    form = keys[0].node.form if keys else "string"
    kind = pa.struct([("key", pa.string()), ("value", value.node.arrow)])
    return Node("entries", kind, (Child("key", Node(form, pa.string()), number=1), value._replace(name="value")))


def _numbers(
    part: _Part, forms: Mapping[str, int], children: tuple[int, int], texts: tuple[int, int], numbers: int
) -> tuple[int, ...]:
    node, child = part.node, part.child
    flags = _NULLABLE * child.nullable | _REQUIRED * child.required | _CLOSED * node.closed | _WRAPPED * part.is_wrapped
    low, high, unit = _INT64
    if node.form in _RANGES:
        low, high, unit = _RANGES[node.form]
    elif node.form == "whole":
        low, high = -(1 << node.arrow.bit_width - 1), (1 << node.arrow.bit_width - 1) - 1
    size, scale = node.size, numbers
    if "fixed" in node.form and forms is PROTOBUF_FORMS:
        size = 4 if node.form.endswith("32") else 8
    elif node.form == "decimal":
        size, scale = node.size, node.arrow.precision
        if forms is JSON_FORMS:
            size, scale = node.arrow.precision, node.arrow.scale
    form = forms.get(node.form, forms["struct"])
    layout = _layout(node.arrow)
    values = part.null, size, scale, low, high, unit
    places = node.leaves, part.is_below_list, part.parent, child.number, child.group
    return form, layout, flags, *children, *values, *texts, *places


def _layout(kind: Any) -> int:
    if pa.types.is_struct(kind):
        return _STRUCT
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _LIST
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _TEXT
    return _BITS if pa.types.is_boolean(kind) else int(kind.bit_width) // 8


# The functions.

_FORMS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    "avro": ("avro.c", AVRO_FORMS),
    "json": ("json.c", JSON_FORMS),
    "columns": ("json.c", JSON_FORMS),
    "protobuf": ("protobuf.c", PROTOBUF_FORMS),
}
#: Bytes from which on a function releases the interpreter's lock: with fewer, getting it back would take longer.
_LARGE_BYTES: Final = 128 * 1024
#: Places in a fault, numbers of `struct fault` and of `struct ArrowArray`.
_PLACES: Final = 4
_FAULT_NUMBERS: Final = 13
_NAME_BYTES_AT: Final = 9
_IS_KEPT_AT: Final = 12
_ARROW_NUMBERS: Final = 10


class Decoded(NamedTuple):
    """Values of bodies, null where one does not fit or is left, and each fault with its places."""

    values: pa.StructArray
    faults: list[tuple[Misfit, list[int]]]
    #: Bodies of which one field does not fit: the place, the fault, and the field's bytes.
    kept: list[tuple[int, Misfit, bytes]]
    #: Places of bodies that the plain twin has to judge, and of those with another header.
    asked: list[int]
    others: list[int]


class NativeDecoder:
    """The compiled decoder of one schema."""

    def __init__(self, functions: tuple[Any, ...], root: Node, forms: Mapping[str, int]) -> None:
        self._holding_lock, self._without_lock = functions
        self._plan = plan_of(root, forms)
        self._kind = root.arrow

    def decode(self, bodies: pa.BinaryArray, header: bytes, *, rescues: bool = False) -> Decoded:
        """Decode bodies; one that begins with another header than this is left, in `others`.

        With `rescues`, a body with one field that does not fit has the others (JSON).
        """
        rows = len(bodies)
        valid, ends, data = bodies.buffers()
        faults = np.empty((rows, _FAULT_NUMBERS), np.int64)
        head = ctypes.create_string_buffer(header, len(header))
        plan = self._plan
        job = array(
            "q",
            (
                plan.nodes.buffer_info()[0],
                plan.node_count,
                plan.text_ends.buffer_info()[0],
                plan.texts.address,
                0 if valid is None else valid.address,
                0 if ends is None else ends.address,
                0 if data is None else data.address,
                bodies.offset,
                rows,
                ctypes.addressof(head),
                len(header),
                TYPED_CELLS_MIN,
                TYPED_CELLS_PER_BYTE_MAX,
                rescues,
                faults.__array_interface__["data"][0],
                0,
            ),
        )
        arrow = array("q", [0] * _ARROW_NUMBERS)
        decode = self._without_lock if data is not None and data.size > _LARGE_BYTES else self._holding_lock
        if decode(job.buffer_info()[0], arrow.buffer_info()[0]):
            raise MemoryError("no memory for the columns of bodies")
        values = pa.Array._import_from_c(arrow.buffer_info()[0], self._kind)
        return self._decoded(bodies, values, faults[: job[-1]])

    def _decoded(self, bodies: pa.BinaryArray, values: pa.StructArray, faults: NDArray[np.int64]) -> Decoded:
        if not len(faults):
            return Decoded(values, [], [], [], [])
        asked, others = faults[:, 1] == Reason.ASK, faults[:, 1] == Reason.OTHER_SCHEMA
        # Most often, all have one of few faults, without a place in a list or a name of the sender's.
        plain = ~(asked | others | (faults[:, 3] > 0) | (faults[:, _NAME_BYTES_AT] > 0) | (faults[:, _IS_KEPT_AT] > 0))
        keys = faults[plain, 1] * self._plan.node_count + faults[plain, 2]
        order = np.argsort(keys, kind="stable")
        groups = np.split(faults[plain][order], np.flatnonzero(np.diff(keys[order])) + 1)
        whole = [(self._misfit(some[0].tolist()[1:], b""), some[:, 0].tolist()) for some in groups if len(some)]
        kept = []
        misfits: dict[tuple[int | bytes, ...], tuple[Misfit, list[int]]] = {}
        for row, *fault, start, size, value, value_size, is_kept in faults[~(plain | asked | others)].tolist():
            body = bodies[row].as_py()
            name = body[start : start + size]
            key = (*fault, name)
            if key not in misfits:
                misfits[key] = self._misfit(fault, name), []
            if is_kept:
                kept.append((row, misfits[key][0], body[value : value + value_size]))
            else:
                misfits[key][1].append(row)
        whole += [fault for fault in misfits.values() if fault[1]]
        return Decoded(values, whole, kept, faults[asked, 0].tolist(), faults[others, 0].tolist())

    def _misfit(self, fault: list[int], name: bytes) -> Misfit:
        why, node, places, *place = fault[: 3 + _PLACES]
        misfit = Misfit(Reason(why))
        if name:
            misfit.within(senders_name(name.decode()))
        for part in reversed(self._plan.path(node, place[:places])):
            misfit.within(part)
        return misfit


def native_decoder(form: str, root: Node) -> NativeDecoder | None:
    """Return the compiled decoder of a schema; None: there is none here."""
    if form not in _FORMS:
        return None
    source, forms = _FORMS[form]
    functions = _functions(source)
    return None if functions is None else NativeDecoder(functions, root, forms)


@cache
def _functions(source: str) -> tuple[Any, ...] | None:
    """The function that holds the interpreter's lock, and the one without it."""
    try:
        path = str(library_path(Path(__file__).with_name(source)))
        return tuple(_typed(load(path)[f"deltamq_{Path(source).stem}"]) for load in (ctypes.PyDLL, ctypes.CDLL))
    except OSError:
        return None


def _typed(function: Any) -> Any:
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function

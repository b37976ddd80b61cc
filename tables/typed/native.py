"""Bodies as columns by compiled functions (`avro.c`, `json.c`), where they could be compiled.

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

from deltamq.mq.limits import TYPED_CELLS_MIN, TYPED_CELLS_PER_BYTE_MAX
from deltamq.tables.compiled import library_path
from deltamq.tables.typed.misfit import Misfit, Reason, senders_name
from deltamq.tables.typed.node import Node
from deltamq.tables.typed.plan import AVRO_FORMS, JSON_FORMS, plan_of

_FORMS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    "avro": ("avro.c", AVRO_FORMS),
    "json": ("json.c", JSON_FORMS),
    "columns": ("json.c", JSON_FORMS),
}
#: Bytes from which on a function releases the interpreter's lock: with fewer, getting it back would take longer.
_LARGE_BYTES: Final = 128 * 1024
#: Numbers of `struct fault` and of `struct ArrowArray`.
_FAULT_NUMBERS: Final = 10
_ARROW_NUMBERS: Final = 10


class Decoded(NamedTuple):
    """Values of bodies, null where one does not fit or is left, and each fault with its places."""

    values: pa.StructArray
    faults: list[tuple[Misfit, list[int]]]
    #: Places of bodies that the plain twin has to judge, and of those with another header.
    asked: list[int]
    others: list[int]


class NativeDecoder:
    """The compiled decoder of one schema."""

    def __init__(self, functions: tuple[Any, ...], root: Node, forms: Mapping[str, int]) -> None:
        self._holding_lock, self._without_lock = functions
        self._plan = plan_of(root, forms)
        self._kind = root.arrow

    def decode(self, bodies: pa.BinaryArray, header: bytes) -> Decoded:
        """Decode bodies; one that begins with another header than this has the fault `OTHER_SCHEMA`."""
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
                ends.address,
                0 if data is None else data.address,
                bodies.offset,
                rows,
                ctypes.addressof(head),
                len(header),
                TYPED_CELLS_MIN,
                TYPED_CELLS_PER_BYTE_MAX,
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
            return Decoded(values, [], [], [])
        asked, others = faults[:, 1] == Reason.ASK, faults[:, 1] == Reason.OTHER_SCHEMA
        misfits: dict[tuple[int | bytes, ...], tuple[Misfit, list[int]]] = {}
        for row, *fault, start, size in faults[~(asked | others)].tolist():
            name = bodies[row].as_py()[start : start + size] if size else b""
            key = (*fault, name)
            if key not in misfits:
                misfits[key] = self._misfit(fault, name), []
            misfits[key][1].append(row)
        return Decoded(values, list(misfits.values()), faults[asked, 0].tolist(), faults[others, 0].tolist())

    def _misfit(self, fault: list[int], name: bytes) -> Misfit:
        why, node, places, *place = fault
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

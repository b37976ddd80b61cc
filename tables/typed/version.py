"""Bodies that one version of a schema wrote, as its columns: compiled where that is possible, row by row where not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from deltamq.tables.typed.json.constraints import broken
from deltamq.tables.typed.misfit import Misfit
from deltamq.tables.typed.native import Decoded, native_decoder
from deltamq.tables.typed.plain import READERS, Rest, Row, kept, row_of
from deltamq.tables.typed.rows import in_order, without
from deltamq.tables.typed.schema import Schema
from deltamq.tables.typed_row import INVALID_TYPE


class Judged:
    """What became of bodies that do not fit."""

    def __init__(self) -> None:
        #: Many bodies have the same fault: its number, by place, and the numbers of faults.
        self._invalid: dict[int, int] = {}
        self._faults: dict[tuple[str, str, str, int | None], int] = {}
        self._rescued: dict[int, Rest] = {}

    def add(self, position: int, row: Row, schema_id: int | None) -> None:
        """Note what became of a body."""
        if row.misfit is not None:
            self.add_fault(row.misfit, (position,), schema_id)
        if row.rest is not None:
            self._rescued[position] = row.rest

    def add_rest(self, position: int, misfit: Misfit, sent: str) -> None:
        """Note what does not fit of a body that is rescued, as JSON."""
        self._rescued.setdefault(position, Rest([])).fields.append((misfit, sent))

    def add_fault(self, misfit: Misfit, positions: Iterable[int], schema_id: int | None) -> None:
        """Note the fault that some bodies have."""
        fault = misfit.code, misfit.field, misfit.reason, schema_id
        self._invalid.update(dict.fromkeys(positions, self._faults.setdefault(fault, len(self._faults))))

    def invalid(self, count: int) -> pa.StructArray | None:
        """Return the column `invalid` of all bodies; None if every one fits."""
        if not self._invalid:
            return None
        faults = pa.array(list(self._faults), INVALID_TYPE).take(pa.array(list(self._invalid.values()), pa.int64()))
        return in_order([(list(self._invalid), faults)], count, INVALID_TYPE)

    def rescued(self, count: int) -> pa.StringArray | None:
        """Return the column `rescued` of all bodies; None if every one fits."""
        if not self._rescued:
            return None
        texts = pa.array([rest.text() for rest in self._rescued.values()], pa.string())
        return in_order([(list(self._rescued), texts)], count, pa.string())


class VersionDecoder:
    """Decodes the bodies that one version wrote."""

    def __init__(self, form: str, schema: Schema, header: bytes, *, rescues: bool, compiled: bool) -> None:
        self._root = root = schema.root
        self._kind = root.arrow
        self._schema_id = schema.id
        self._judge = schema.judge
        self._header = header
        self._rescues = rescues
        self._read = READERS[form](root)
        self._native = native_decoder(form, root) if compiled else None

    def decode(self, bodies: pa.BinaryArray, positions: Sequence[int], judged: Judged) -> tuple[pa.Array, list[int]]:
        """Return the columns of bodies, and where in `bodies` there are some with another header.

        `positions` are those of the bodies among all that `judged` is about.
        """
        values, others = self._decoded(bodies, positions, judged)
        if self._root.is_constrained:
            values = self._constrained(values, positions, judged)
        if self._judge is not None:
            values = self._as_a_whole(bodies, values, positions, judged)
        return values, others

    def _as_a_whole(
        self, bodies: pa.BinaryArray, values: pa.StructArray, positions: Sequence[int], judged: Judged
    ) -> pa.StructArray:
        """Judge the bodies that fit so far by what columns do not show."""
        judge = self._judge
        assert judge is not None, "asked only where something judges"
        start, gone = len(self._header), np.zeros(len(values), np.bool_)
        for row in np.flatnonzero(values.is_valid()).tolist():
            body = bodies[row].as_py()[start:]
            misfit = judge.misfit(body)
            if misfit is not None and self._rescues:
                # Nothing of the columns is wrong by itself: they stay, and the body says the rest.
                judged.add_rest(positions[row], misfit, body.decode())
            elif misfit is not None:
                judged.add_fault(misfit, (positions[row],), self._schema_id)
                gone[row] = True
        return without(values, gone) if gone.any() else values

    def _constrained(self, values: pa.StructArray, positions: Sequence[int], judged: Judged) -> pa.StructArray:
        values, breaks = broken(values, self._root, keeps=self._rescues)
        if self._rescues:
            for one in breaks:
                for row, sent in zip(one.rows.tolist(), one.sent, strict=True):
                    judged.add_rest(positions[row], one.misfit, sent)
            return values
        gone = np.zeros(len(values), np.bool_)
        for one in breaks:
            rows = one.rows[~gone[one.rows]]
            judged.add_fault(one.misfit, (positions[row] for row in rows.tolist()), self._schema_id)
            gone[rows] = True
        return without(values, gone) if breaks else values

    def _decoded(self, bodies: pa.BinaryArray, positions: Sequence[int], judged: Judged) -> tuple[pa.Array, list[int]]:
        if self._native is None:
            values, others = self._by_row(bodies, range(len(bodies)), positions, judged)
            return in_order([values], len(bodies), self._kind), others
        decoded: Decoded = self._native.decode(bodies, self._header, rescues=self._rescues)
        for row, misfit, sent in decoded.kept:
            judged.add(positions[row], kept(misfit, sent), self._schema_id)
        asked = decoded.asked
        if self._rescues:
            asked = sorted(asked + [row for _, rows in decoded.faults for row in rows])
        else:
            for misfit, rows in decoded.faults:
                judged.add_fault(misfit, (positions[row] for row in rows), self._schema_id)
        if not asked:
            return decoded.values, decoded.others
        values, _ = self._by_row(bodies, asked, positions, judged)
        return in_order([(range(len(bodies)), decoded.values), values], len(bodies), self._kind), decoded.others

    def _by_row(
        self, bodies: pa.BinaryArray, rows: Sequence[int], positions: Sequence[int], judged: Judged
    ) -> tuple[tuple[list[int], pa.StructArray], list[int]]:
        some = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows, pa.int64()))
        places: list[int] = []
        values: list[Any] = []
        others: list[int] = []
        for row, body in zip(rows, some.to_pylist(), strict=True):
            if not body:
                continue
            if not body.startswith(self._header):
                others.append(row)
                continue
            judgement = row_of(self._read, body, len(self._header), rescues=self._rescues)
            judged.add(positions[row], judgement, self._schema_id)
            if judgement.value is not None:
                places.append(row)
                values.append(judgement.value)
        return (places, pa.array(values, self._kind)), others

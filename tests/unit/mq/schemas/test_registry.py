"""The registry as a fold of events, held against a plain model of it (SPEC TYPE-20 to TYPE-25)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import UNSET

from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, NotFound, Unprocessable
from deltamq.mq.meta.features import FeaturesState, decide_use
from deltamq.mq.meta.fold import Meta, event_from_json, event_to_json
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.schemas.changes import (
    decide_compatibility,
    decide_delete_subject,
    decide_delete_version,
    decide_mode,
    decide_register,
    resolved,
)
from deltamq.mq.schemas.limits import SCHEMA_BYTES_MAX, SCHEMA_REFERENCES_MAX
from deltamq.mq.schemas.registry import (
    ALL_SUBJECTS,
    Reference,
    RegistryState,
    Schema,
    SchemaDeleted,
    SchemaEvent,
    SchemaRegistered,
    Version,
)
from deltamq.mq.schemas.setting import SchemaSetting, check_subject, subject_of

A, B, C = (Schema(schema=f'"{text}"') for text in ("int", "long", "string"))


def after(state: RegistryState, events: Sequence[SchemaEvent]) -> RegistryState:
    """The state after events that went by way of the log."""
    return Meta(schemas=state).apply_all([event_from_json(e.kind, event_to_json(e)) for e in events]).schemas


def registered(state: RegistryState, subject: str, schema: Schema, **given: Any) -> RegistryState:
    return after(state, decide_register(state, subject, schema, basis=state.basis(subject), **given))


def refers(*places: tuple[str, int], text: str = "int") -> Schema:
    return Schema(schema=text, references=tuple(Reference(f"{s}-{v}", s, v) for s, v in places))


def code_of(error: type[DeltaMQError], decide: Any) -> str:
    with pytest.raises(error) as refused:
        decide()
    return refused.value.code


class Registry(RuleBasedStateMachine):
    """Registers and deletes at random; the model has for each subject its versions, and for each text its id."""

    subjects = st.sampled_from(["orders-value", "größe", "a/b"])
    texts = st.sampled_from(["int", "long", "string", "bytes"])
    numbers = st.integers(1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.state = RegistryState()
        self.model: dict[str, dict[int, tuple[str, bool]]] = {}
        self.ids: dict[str, int] = {}
        self.ids_given: list[int] = []

    def _apply(self, events: Sequence[SchemaEvent]) -> None:
        self.state = after(self.state, events)

    @rule(subject=subjects, text=texts)
    def register(self, subject: str, text: str) -> None:
        held = self.model.setdefault(subject, {})
        is_new = (text, False) not in held.values()
        if is_new:
            held[max(held, default=0) + 1] = (text, False)
        if text not in self.ids:
            self.ids[text] = max(self.ids_given, default=0) + 1
            self.ids_given.append(self.ids[text])
        events = decide_register(self.state, subject, Schema(schema=text), basis=self.state.basis(subject))
        assert bool(events) == is_new
        self._apply(events)

    @rule(subject=subjects, number=numbers, permanent=st.booleans())
    def delete(self, subject: str, number: int, permanent: bool) -> None:
        held = self.model.get(subject, {})
        try:
            events = decide_delete_version(self.state, subject, number, permanent=permanent)
        except NotFound:
            assert number not in held or held[number][1] is not permanent
            return
        if permanent:
            del held[number]
            self._forget()
        else:
            held[number] = (held[number][0], True)
        self._apply(events)

    @rule(subject=subjects, permanent=st.booleans())
    def delete_all(self, subject: str, permanent: bool) -> None:
        held = self.model.get(subject, {})
        live = [number for number, (_, deleted) in held.items() if not deleted]
        try:
            events = decide_delete_subject(self.state, subject, permanent=permanent)
        except NotFound:
            assert not held or bool(live) is permanent
            return
        if permanent:
            held.clear()
            self._forget()
        else:
            held.update({number: (text, True) for number, (text, _) in held.items()})
        self._apply(events)

    def _forget(self) -> None:
        kept = {text for held in self.model.values() for text, _ in held.values()}
        self.ids = {text: id_ for text, id_ in self.ids.items() if text in kept}

    @invariant()
    def is_as_the_model(self) -> None:
        for subject in ("orders-value", "größe", "a/b"):
            held = self.model.get(subject, {})
            every = self.state.versions(subject, deleted=True)
            assert [(one.version, one.schema, one.deleted) for one in every] == [(n, *one) for n, one in held.items()]
            assert list(self.state.versions(subject)) == [one for one in every if not one.deleted]
        assert {schema.schema: id_ for id_, schema in self.state.schemas.items()} == self.ids
        for text, id_ in self.ids.items():
            assert (by_id := self.state.by_id(id_)) is not None and by_id.schema == text
            assert {one.id for one in self.state.places(id_)} == {id_}
        assert self.state.last_id == max(self.ids_given, default=0)

    @invariant()
    def a_snapshot_has_it(self) -> None:
        meta = Meta(schemas=self.state)
        read = MetaSnapshot.from_json(MetaSnapshot(meta=meta, previous=0, told={}).to_json()).meta.schemas
        assert read == self.state and read._places == self.state._places and read._ids == self.state._ids


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(stateful_step_count=25)


def test_type_20_a_schema_has_one_id_under_every_subject_and_an_id_is_never_given_again() -> None:
    state = registered(registered(registered(RegistryState(), "a", A), "b", A), "b", B)
    assert [(one.version, one.id) for one in state.versions("b")] == [(1, 1), (2, 2)]
    assert [one.subject for one in state.places(1)] == ["a", "b"]
    state = after(state, decide_delete_subject(state, "b", permanent=False))
    deleted = state.by_id(2)
    assert deleted is not None and deleted.deleted and state.find("b", B) is None
    assert state.find("b", B, deleted=True) == deleted
    state = after(state, decide_delete_subject(state, "b", permanent=True))
    assert state.by_id(2) is None and state.by_id(1) is not None and state.subjects.keys() == {"a"}
    assert registered(state, "b", B).versions("b")[0].id == 3


def test_type_20_a_registration_again_changes_nothing_and_after_a_deletion_is_a_new_version_with_its_id() -> None:
    state = registered(RegistryState(), "a", A)
    assert registered(state, "a", A) == state
    state = after(state, decide_delete_version(state, "a", 1, permanent=False))
    state = registered(state, "a", A)
    assert [(one.version, one.id) for one in state.versions("a")] == [(2, 1)]


def test_type_21_a_check_that_another_process_overtook_is_made_again() -> None:
    before = registered(RegistryState(), "a", A)
    basis = before.basis("a")
    state = registered(before, "a", B)
    assert code_of(Conflict, lambda: decide_register(state, "a", C, basis=basis)) == "registry_changed"
    looser = after(before, decide_compatibility(before, "a", "NONE"))
    assert code_of(Conflict, lambda: decide_register(looser, "a", C, basis=basis)) == "registry_changed"
    assert decide_register(state, "a", B, basis=basis) == (), "the same schema is there already"


def test_type_21_the_level_says_which_versions_are_checked() -> None:
    state = registered(registered(RegistryState(), "a", A), "a", B)

    def checked(level: Any) -> list[int]:
        return [place.version for place in after(state, decide_compatibility(state, "a", level)).basis("a").versions]

    assert state.compatibility("a") == "BACKWARD" and checked("BACKWARD") == checked("FULL") == [2]
    assert checked("FORWARD_TRANSITIVE") == [1, 2] and checked("NONE") == [2], "the rest may depend on it"
    state = after(state, decide_compatibility(state, ALL_SUBJECTS, "FULL"))
    assert state.compatibility("a") == "FULL"
    state = after(state, decide_compatibility(state, "a", "NONE"))
    state = after(state, decide_compatibility(state, "a", UNSET))
    assert state.compatibility("a") == "FULL"
    assert code_of(NotFound, lambda: decide_compatibility(state, "a", UNSET)) == "compatibility_not_set"


def test_type_22_references_are_live_versions_and_come_before_what_uses_them() -> None:
    state = registered(registered(RegistryState(), "a", A), "a", B)
    state = registered(state, "b", refers(("a", 1), ("a", -1)))
    (b,) = state.versions("b")
    assert [(used.subject, used.version) for used in b.references] == [("a", 1), ("a", 2)]
    c = resolved(state, "c", refers(("b", 1), ("a", 1)))
    assert [(one.subject, one.version) for one in state.with_references(c)] == [("a", 1), ("a", 2), ("b", 1), ("c", 0)]
    for wrong in (refers(("a", 3)), refers(("nobody", -1)), refers(("c", 1)), refers(("a", 1), ("a", 1))):
        assert code_of(Unprocessable, lambda wrong=wrong: resolved(state, "c", wrong)) == "invalid_schema"
    other_type = Schema(schema_type="JSON", schema="{}", references=(Reference("a", "a", 1),))
    assert code_of(Unprocessable, lambda: resolved(state, "c", other_type)) == "invalid_schema"


def test_type_22_what_others_refer_to_stays() -> None:
    state = registered(registered(RegistryState(), "a", A), "b", refers(("a", 1)))
    assert code_of(Unprocessable, lambda: decide_delete_version(state, "a", 1, permanent=False)) == "reference_exists"
    assert code_of(Unprocessable, lambda: decide_delete_subject(state, "a", permanent=False)) == "reference_exists"
    state = after(state, decide_delete_subject(state, "b", permanent=False))
    state = after(state, decide_delete_subject(state, "a", permanent=False))
    assert code_of(Unprocessable, lambda: decide_delete_subject(state, "a", permanent=True)) == "reference_exists"
    state = after(state, decide_delete_subject(state, "b", permanent=True))
    assert after(state, decide_delete_subject(state, "a", permanent=True)).subjects == {}


def test_type_22_size_and_number_of_what_a_schema_refers_to_are_bounded() -> None:
    state = registered(RegistryState(), "s0", Schema(schema="x" * (SCHEMA_BYTES_MAX // 2)))
    for number in range(1, SCHEMA_REFERENCES_MAX + 1):
        state = registered(state, f"s{number}", refers((f"s{number - 1}", 1), text=str(number)))
    last = f"s{SCHEMA_REFERENCES_MAX}"
    assert len(state.with_references(state.versions(last)[0])) == SCHEMA_REFERENCES_MAX + 1
    assert code_of(Unprocessable, lambda: resolved(state, "z", refers((last, 1)))) == "invalid_schema"
    large = refers(("s0", 1), text="x" * (SCHEMA_BYTES_MAX // 2 + 1))
    assert code_of(Unprocessable, lambda: resolved(state, "z", large)) == "schema_too_large"


def test_type_23_modes_forbid_changes_and_an_import_brings_ids() -> None:
    state = registered(RegistryState(), "a", A)
    closed = after(state, decide_mode(state, ALL_SUBJECTS, "READONLY", force=False))
    for refused in (
        lambda: registered(closed, "a", B),
        lambda: decide_delete_subject(closed, "a", permanent=False),
        lambda: decide_compatibility(closed, "a", "NONE"),
        lambda: registered(state, "b", B, id_=7),
        lambda: registered(state, "a", B, number=3),
        lambda: decide_mode(state, "a", "IMPORT", force=False),
    ):
        assert code_of(Unprocessable, refused) == "operation_not_permitted"
    assert registered(closed, "a", A) == closed, "it is there already"
    state = after(state, decide_mode(state, "b", "IMPORT", force=False))
    for wrong in ({}, {"id_": 1}, {"id_": 0}, {"id_": 2**31}, {"id_": 9, "number": 0}):
        assert code_of(Unprocessable, lambda wrong=wrong: registered(state, "b", B, **wrong)) == (
            "operation_not_permitted"
        ), wrong
    assert code_of(Unprocessable, lambda: registered(state, "b", A, id_=2)) == "operation_not_permitted"
    state = registered(state, "b", B, id_=40, number=5)
    state = registered(state, "b", A, id_=1, number=2)
    assert [(one.version, one.id) for one in state.versions("b")] == [(2, 1), (5, 40)]
    assert registered(state, "c", C).versions("c")[0].id == 41
    override = after(state, decide_mode(state, ALL_SUBJECTS, "READONLY_OVERRIDE", force=False))
    assert override.mode("b") == "READONLY_OVERRIDE" and closed.mode("other") == "READONLY"
    assert after(state, decide_mode(state, "b", UNSET, force=False)).mode("b") == "READWRITE"


def test_type_20_events_that_contradict_each_other_are_damage() -> None:
    state = registered(RegistryState(), "a", A)
    for event in (
        SchemaRegistered(subject="a", version=1, id=2, schema=B),
        SchemaRegistered(subject="a", version=2, id=2),
        SchemaRegistered(subject="a", version=2, id=1, schema=B),
        SchemaRegistered(subject="a", version=2, id=2, schema=A),
        SchemaDeleted(subject="a", versions=(2,), permanent=False),
        SchemaDeleted(subject="b", versions=(1,), permanent=True),
    ):
        with pytest.raises(Corrupt):
            state.apply_all([event])


@pytest.mark.parametrize("subject", ["", "x" * 256, "a\nb", ":.other:a", "__GLOBAL"])
def test_type_20_a_subject_has_a_name_that_can_be_shown(subject: str) -> None:
    with pytest.raises(Unprocessable, match="a subject is 1 to 255 characters"):
        check_subject(subject)


def test_meta_05_the_first_use_of_a_feature_waits_for_every_process() -> None:
    hosts = {"http://a": ("schemas",), "http://b": ()}
    assert code_of(Conflict, lambda: decide_use(FeaturesState(), hosts, "schemas")) == "feature_waits"
    (switched,) = decide_use(FeaturesState(), {"http://a": ("schemas",)}, "schemas")
    assert decide_use(FeaturesState().apply_all([switched]), hosts, "schemas") == ()


def test_type_01_the_parts_of_a_setting_fit_each_other() -> None:
    setting = SchemaSetting(format="protobuf", subject=subject_of("orders"), message="Order", wire="confluent")
    setting.check()
    assert setting.schema_type == "PROTOBUF" and setting.subject == "orders-value"
    for wrong in (
        SchemaSetting(format="avro", subject="s", message="Order"),
        SchemaSetting(format="columns", subject="s", wire="confluent"),
        SchemaSetting(format="columns", subject="s", unwrap="debezium"),
    ):
        assert code_of(Unprocessable, wrong.check) == "invalid_schema_setting"
    assert code_of(Unprocessable, SchemaSetting(format="avro", subject="").check) == "invalid_subject"


def test_type_20_a_version_says_what_it_is() -> None:
    assert registered(RegistryState(), "a", A).version("a", 1) == Version(
        subject="a", version=1, id=1, schema_type="AVRO", schema='"int"'
    )

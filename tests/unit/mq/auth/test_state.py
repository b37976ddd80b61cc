"""Principals, keys and rules as a fold of events (SPEC SEC-1, SEC-3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from deltamq.mq.auth.callers import Decisions
from deltamq.mq.auth.changes import (
    decide_disable_principal,
    decide_enable_principal,
    decide_first_administrator,
    decide_put_key,
    decide_put_password,
    decide_put_principal,
    decide_put_quota,
    decide_put_rule,
    decide_remove_password,
    decide_remove_principal,
    decide_remove_rule,
    decide_revoke_key,
)
from deltamq.mq.auth.keys import SCRAM_HASHES, Key, Password, password_of
from deltamq.mq.auth.principals import VERBS, AccessRule, Principal, Quota, quota_of, rule_of
from deltamq.mq.auth.state import (
    AclPut,
    AclRemoved,
    AuthEvent,
    AuthState,
    KeyPut,
    KeyRevoked,
    PasswordPut,
    PasswordRemoved,
    PrincipalDisabled,
    PrincipalEnabled,
    PrincipalPut,
    PrincipalRemoved,
    QuotaPut,
)
from deltamq.mq.errors import Conflict, NotFound, Refused
from deltamq.mq.limits import RULES_OF_PRINCIPAL_MAX
from deltamq.mq.meta.fold import Meta, event_from_json, event_to_json
from deltamq.mq.meta.snapshot import MetaSnapshot


def applied(state: AuthState, events: Sequence[AuthEvent]) -> AuthState:
    """The state after these events, by way of the log, and of a snapshot behind it."""
    read = [event_from_json(event.kind, event_to_json(event)) for event in events]
    meta = Meta(auth=state).apply_all(read)
    stored = MetaSnapshot.from_json(MetaSnapshot(meta=meta, previous=0, told={}).to_json())
    assert stored.meta.auth == meta.auth
    return meta.auth


def key(number: int, created_ms: int = 10, until_ms: int | None = None) -> Key:
    digest = f"{number:064x}"
    return Key(id=f"{number:016x}", principal="reports", digest=digest, created_ms=created_ms, until_ms=until_ms)


def rule(pattern: str = "orders", effect: str = "allow") -> AccessRule:
    return rule_of(principal="reports", effect=effect, resource="topic", pattern=pattern, verbs=["publish"])


@pytest.fixture
def state() -> AuthState:
    return applied(AuthState(), decide_put_principal(AuthState(), "reports", "Ada", 5))


def test_sec_03_a_principal_is_made_changed_and_removed_with_all_that_is_its(state: AuthState) -> None:
    assert state.principal("reports").created_ms == 5
    assert decide_put_principal(state, "reports", "Ada", 9) == ()
    state = applied(state, decide_put_principal(state, "reports", "Grace", 9))
    assert (state.principal("reports").note, state.principal("reports").created_ms) == ("Grace", 5)
    state = applied(state, [*decide_put_key(state, key(1)), *decide_put_rule(state, rule())])
    assert state.keys_of("reports") and state.rules_of("reports")
    assert applied(state, decide_remove_principal(state, "reports")) == AuthState()


def test_sec_19_a_principal_is_disabled_and_enabled_and_keeps_what_it_has(state: AuthState) -> None:
    state = applied(state, [*decide_put_key(state, key(1)), *decide_put_rule(state, rule())])
    state = applied(state, decide_put_quota(state, quota_of("reports", requests_per_s=5)))
    off = applied(state, decide_disable_principal(state, "reports", 70))
    assert off.is_disabled("reports") and off.principal("reports").disabled_since_ms == 70
    assert (off.keys, off.rules, off.quotas) == (state.keys, state.rules, state.quotas)
    assert decide_disable_principal(off, "reports", 90) == ()
    changed = applied(off, decide_put_principal(off, "reports", "Grace", 95))
    assert changed.is_disabled("reports") and changed.principal("reports").note == "Grace", "a note enables nobody"
    assert applied(off, decide_enable_principal(off, "reports")) == state
    assert decide_enable_principal(state, "reports") == ()
    again = applied(off, decide_remove_principal(off, "reports"))
    assert not applied(again, decide_put_principal(again, "reports", "", 99)).is_disabled("reports")


def test_sec_19_nobody_that_is_not_there_and_no_group_is_disabled(state: AuthState) -> None:
    for decide in (
        lambda: decide_disable_principal(state, "nobody", 7),
        lambda: decide_enable_principal(state, "nobody"),
    ):
        with pytest.raises(NotFound):
            decide()
    state = applied(state, decide_put_principal(state, "group:analysts", "", 5))
    with pytest.raises(Refused, match="is a group"):
        decide_disable_principal(state, "group:analysts", 7)
    assert not state.is_disabled("nobody")
    assert applied(state, [PrincipalDisabled(name="nobody", at_ms=7), PrincipalEnabled(name="nobody")]) == state


@pytest.mark.parametrize(
    "decide", [lambda state, name: decide_disable_principal(state, name, 7), decide_remove_principal]
)
def test_sec_19_the_last_administrator_is_neither_disabled_nor_removed(decide: Any) -> None:
    def administrator(state: AuthState, name: str) -> AuthState:
        first = Key(id=name.encode().hex()[:16].ljust(16, "0"), principal=name, digest="1" * 64, created_ms=5)
        return applied(state, decide_first_administrator(state, first))

    def is_last(state: AuthState, name: str) -> bool:
        try:
            return decide(state, name) == ()
        except Conflict as refused:
            assert refused.code == "last_administrator"
            return True

    alone = administrator(AuthState(), "root")
    alone = applied(alone, decide_put_principal(alone, "reports", "", 5))
    assert is_last(alone, "root") and not is_last(alone, "reports")
    two = administrator(alone, "second")
    assert not is_last(two, "root")
    assert is_last(applied(two, decide_disable_principal(two, "second", 6)), "root"), "the other may do nothing"
    denied = rule_of(principal="second", effect="deny", resource="cluster", pattern="*", verbs=["admin"])
    two = applied(two, decide_put_rule(two, denied))
    assert is_last(two, "root") and not is_last(two, "second")
    group = applied(alone, decide_put_principal(alone, "group:operators", "", 5))
    granted = rule_of(principal="group:operators", effect="allow", resource="cluster", pattern="*", verbs=["admin"])
    assert not is_last(applied(group, decide_put_rule(group, granted)), "root"), "every principal in it may"


@pytest.mark.parametrize("name", ["", "..", "a b", "a/b", "\n", "ä", "a" * 128])
def test_sec_03_an_odd_name_of_a_principal_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="principal must be"):
        decide_put_principal(AuthState(), name, "", 5)


@pytest.mark.parametrize("note", ["a\nb", "x" * 257])
def test_sec_03_a_note_is_short_and_printable(note: str) -> None:
    with pytest.raises(Refused, match="note must be"):
        decide_put_principal(AuthState(), "reports", note, 5)


def test_sec_01_two_keys_live_so_that_callers_can_change_from_one_to_the_other(state: AuthState) -> None:
    for number in (1, 2):
        state = applied(state, decide_put_key(state, key(number)))
    with pytest.raises(Conflict) as refused:
        decide_put_key(state, key(3))
    assert refused.value.code == "too_many_keys" and key(1).id in refused.value.detail
    state = applied(state, decide_revoke_key(state, key(1).id))
    state = applied(state, decide_put_key(state, key(3)))
    assert [one.id for one in state.keys_of("reports")] == [key(2).id, key(3).id]


def test_sec_15_a_group_has_rules_and_neither_keys_nor_a_quota() -> None:
    group = "group:analysts"
    state = applied(AuthState(), decide_put_principal(AuthState(), group, "", 5))
    granted = rule_of(principal=group, effect="allow", resource="topic", pattern="orders", verbs=["publish"])
    assert applied(state, decide_put_rule(state, granted)).rules_of(group) == [granted]
    its_key = Key(id="0" * 16, principal=group, digest="1" * 64, created_ms=5)
    for decide in (
        lambda: decide_put_key(state, its_key),
        lambda: decide_put_quota(state, quota_of(group, requests_per_s=5)),
        lambda: decide_first_administrator(AuthState(), its_key),
    ):
        with pytest.raises(Refused, match="is a group"):
            decide()


def test_sec_01_a_key_that_ended_is_not_counted_and_is_forgotten(state: AuthState) -> None:
    state = applied(state, decide_put_key(state, key(1, until_ms=50)))
    state = applied(state, decide_put_key(state, key(2)))
    state = applied(state, decide_put_key(state, key(3, created_ms=50)))
    assert set(state.keys) == {key(2).id, key(3).id}


def test_sec_01_a_key_must_end_in_the_future_and_have_a_principal(state: AuthState) -> None:
    with pytest.raises(Refused, match="future"):
        decide_put_key(state, key(1, until_ms=10))
    with pytest.raises(NotFound):
        decide_put_key(AuthState(), key(1))
    with pytest.raises(NotFound):
        decide_revoke_key(state, key(1).id)


def test_sec_03_a_rule_is_put_once_and_removed(state: AuthState) -> None:
    state = applied(state, decide_put_rule(state, rule()))
    assert decide_put_rule(state, rule()) == ()
    state = applied(state, decide_put_rule(state, rule(effect="deny")))
    assert len(state.rules) == 2
    assert applied(state, decide_remove_rule(state, rule("orders", "deny").id)).rules == {rule().id: rule()}
    for decide in (lambda: decide_put_rule(AuthState(), rule()), lambda: decide_remove_rule(AuthState(), rule().id)):
        with pytest.raises(NotFound):
            decide()


def test_sec_03_a_principal_has_a_bounded_number_of_rules(state: AuthState) -> None:
    rules = {one.id: one for one in (rule(f"t{number}") for number in range(RULES_OF_PRINCIPAL_MAX))}
    full = AuthState(state.principals, {}, rules)
    with pytest.raises(Conflict, match="at most"):
        decide_put_rule(full, rule())
    assert decide_put_rule(full, rule("t0")) == ()


def test_sec_09_a_quota_is_set_changed_and_forgotten(state: AuthState) -> None:
    state = applied(state, decide_put_quota(state, quota_of("reports", requests_per_s=5)))
    assert decide_put_quota(state, quota_of("reports", requests_per_s=5)) == ()
    state = applied(state, decide_put_quota(state, quota_of("reports", bytes_in_per_s=7)))
    assert state.quotas == {"reports": quota_of("reports", bytes_in_per_s=7)}
    assert applied(state, decide_remove_principal(state, "reports")).quotas == {}
    assert applied(state, decide_put_quota(state, quota_of("reports"))).quotas == {}
    with pytest.raises(NotFound):
        decide_put_quota(AuthState(), quota_of("reports", requests_per_s=5))


def test_sec_07_the_first_administrator_may_do_everything() -> None:
    first = Key(id="0" * 16, principal="root", digest="1" * 64, created_ms=5)
    state = applied(AuthState(), decide_first_administrator(AuthState(), first))
    decisions = Decisions(state.rules.values())
    assert all(decisions.allows("root", what, "*", verb) for what, verbs in VERBS.items() for verb in verbs)
    assert state.keys == {first.id: first}
    with pytest.raises(Conflict) as refused:
        decide_first_administrator(state, first)
    assert refused.value.code == "principal_exists"


def test_sec_44_passwords_guard_nothing_and_none_that_anybody_could_set_outlives_the_first_administrator() -> None:
    state = applied(AuthState(), decide_put_password(AuthState(), _password("root", "SCRAM-SHA-512")))
    assert state.passwords and not state.principals
    first = Key(id="0" * 16, principal="root", digest="1" * 64, created_ms=5)
    state = applied(state, decide_first_administrator(state, first))
    assert state.passwords == {} and state.keys == {first.id: first}
    state = applied(state, decide_put_password(state, _password("ada", "SCRAM-SHA-512")))
    assert state.principals.keys() == {"root", "ada"}
    other = Key(id="1" * 16, principal="second", digest="1" * 64, created_ms=6)
    assert applied(state, decide_first_administrator(state, other)).passwords == state.passwords


def test_kafka_27_a_principal_has_one_password_for_each_mechanism(state: AuthState) -> None:
    for mechanism in SCRAM_HASHES:
        state = applied(state, decide_put_password(state, _password("reports", mechanism)))
    again = _password("reports", "SCRAM-SHA-512", now_ms=9)
    assert decide_put_password(state, again) == (), "it is so already"
    other = replace(again, salt="b3RoZXI=")
    state = applied(state, decide_put_password(state, other))
    assert (
        state.passwords["reports"].keys() == SCRAM_HASHES.keys() and state.password("reports", "SCRAM-SHA-512") == other
    )
    state = applied(state, decide_remove_password(state, "reports", "SCRAM-SHA-512"))
    assert state.passwords["reports"].keys() == {"SCRAM-SHA-256"} and list(state.principals) == ["reports"]
    with pytest.raises(NotFound, match="no password for SCRAM-SHA-512"):
        decide_remove_password(state, "reports", "SCRAM-SHA-512")
    assert applied(state, decide_remove_principal(state, "reports")) == AuthState()
    with pytest.raises(Refused, match="is a group"):
        decide_put_password(state, _password("group:analysts", "SCRAM-SHA-512"))


# The fold, against one that looks at everything for each event.

_NAMES = ["ada", "bob", "cleo"]
_PATTERNS = ["a", "b*"]


def _key_of(principal: str, number: int, created_ms: int, until_ms: int | None) -> Key:
    """A key; some ids are the same for two principals, which the real ones are not."""
    return Key(id=f"{number:016x}", principal=principal, digest="0" * 64, created_ms=created_ms, until_ms=until_ms)


def _password(principal: str, mechanism: str, *, now_ms: int = 1) -> Password:
    return password_of(principal, mechanism, salt=b"s", iterations=4_096, salted=b"p", now_ms=now_ms)


_times = st.integers(0, 9)
_mechanisms = st.sampled_from(sorted(SCRAM_HASHES))
_principals = st.sampled_from(_NAMES)
_numbers = st.integers(0, 4)
_rules = st.builds(
    lambda principal, pattern: rule_of(
        principal=principal, effect="allow", resource="topic", pattern=pattern, verbs=["publish"]
    ),
    _principals,
    st.sampled_from(_PATTERNS),
)
_events: st.SearchStrategy[AuthEvent] = st.one_of(
    st.builds(
        lambda name, note: PrincipalPut(principal=Principal(name=name, note=note, created_ms=1)),
        _principals,
        st.sampled_from(["", "x"]),
    ),
    st.builds(PrincipalRemoved, name=_principals),
    st.builds(PrincipalDisabled, name=_principals, at_ms=_times),
    st.builds(PrincipalEnabled, name=_principals),
    st.builds(KeyPut, made=st.builds(_key_of, _principals, _numbers, _times, st.none() | _times)),
    st.builds(lambda number, name: KeyRevoked(id=f"{number:016x}", principal=name), _numbers, _principals),
    st.builds(lambda name, mechanism: PasswordPut(password=_password(name, mechanism)), _principals, _mechanisms),
    st.builds(PasswordRemoved, principal=_principals, mechanism=_mechanisms),
    st.builds(AclPut, rule=_rules),
    st.builds(lambda rule: AclRemoved(id=rule.id, principal=rule.principal), _rules),
    st.builds(
        lambda name, bound: QuotaPut(quota=Quota(principal=name, requests_per_s=bound)),
        _principals,
        st.none() | st.integers(1, 2),
    ),
)


def simply_folded(events: Iterable[AuthEvent]) -> AuthState:
    """The state after these events, by the words of each."""
    principals: dict[str, Principal] = {}
    keys: dict[str, Key] = {}
    rules: dict[str, AccessRule] = {}
    quotas: dict[str, Quota] = {}
    events = list(events)
    for event in events:
        match event:
            case PrincipalPut(principal=one):
                principals[one.name] = one
            case PrincipalRemoved(name=name):
                principals.pop(name, None)
                quotas.pop(name, None)
                keys = {id_: key for id_, key in keys.items() if key.principal != name}
                rules = {id_: rule for id_, rule in rules.items() if rule.principal != name}
            case PrincipalDisabled(name=name, at_ms=at_ms):
                principals |= {n: replace(one, disabled_ms=at_ms) for n, one in principals.items() if n == name}
            case PrincipalEnabled(name=name):
                principals |= {n: replace(one, disabled_ms=UNSET) for n, one in principals.items() if n == name}
            case KeyPut(made=made):
                its_ended = {
                    id_
                    for id_, key in keys.items()
                    if key.principal == made.principal and not key.is_live(made.created_ms)
                }
                keys = {id_: key for id_, key in keys.items() if id_ not in its_ended} | {made.id: made}
            case KeyRevoked(id=id_):
                keys.pop(id_, None)
            case AclPut(rule=put):
                rules[put.id] = put
            case AclRemoved(id=id_):
                rules.pop(id_, None)
            case QuotaPut(quota=quota):
                quotas = {name: one for name, one in quotas.items() if name != quota.principal}
                if not quota.is_open:
                    quotas[quota.principal] = quota
    return AuthState(principals, keys, rules, quotas, _simple_passwords(events))


def _simple_passwords(events: Iterable[AuthEvent]) -> dict[str, dict[str, Password]]:
    passwords: dict[tuple[str, str], Password] = {}
    for event in events:
        match event:
            case PrincipalRemoved(name=name):
                passwords = {whose: one for whose, one in passwords.items() if whose[0] != name}
            case PasswordPut(password=word):
                passwords[word.principal, word.mechanism] = word
            case PasswordRemoved(principal=name, mechanism=mechanism):
                passwords.pop((name, mechanism), None)
    nested: dict[str, dict[str, Password]] = {}
    for (name, mechanism), word in passwords.items():
        nested.setdefault(name, {})[mechanism] = word
    return nested


@given(st.lists(st.lists(_events, max_size=12), max_size=6))
def test_sec_03_a_fold_in_batches_is_what_the_events_say_one_by_one(batches: list[list[AuthEvent]]) -> None:
    states = [AuthState()]
    for batch in batches:
        states.append(states[-1].apply_all(batch))
    told: list[AuthEvent] = []
    # Each state is looked at when all are made: none may have changed by what came after it.
    for state, batch in zip(states, [[], *batches], strict=True):
        told += batch
        simple = simply_folded(told)
        assert state == simple
        for name in _NAMES:
            assert state.keys_of(name) == simple.keys_of(name)
            assert {rule.id for rule in state.rules_of(name)} == {rule.id for rule in simple.rules_of(name)}


def test_sec_03_a_fold_looks_at_the_keys_and_rules_of_one_principal_for_each_event() -> None:
    """A thousand principals are not a thousand times the work of one for each event."""
    names = [f"p{number}" for number in range(2_000)]
    events: list[AuthEvent] = [PrincipalPut(principal=Principal(name=name, created_ms=1)) for name in names]
    events += [KeyPut(made=_Counted.key(name, number)) for number, name in enumerate(names)]
    _Counted.asked = 0
    state = AuthState().apply_all(events)
    assert _Counted.asked == 0 and len(state.keys) == len(names)
    state = state.apply_all([KeyPut(made=_Counted.key(names[7], len(names)))])
    assert _Counted.asked == 1 and len(state.keys_of(names[7])) == 2


class _Counted(Key):
    """A key that counts how often anybody asks whether one is over."""

    asked = 0

    @classmethod
    def key(cls, principal: str, number: int) -> _Counted:
        return cls(id=f"{number:016x}", principal=principal, digest="0" * 64, created_ms=1)

    def is_live(self, now_ms: int) -> bool:
        _Counted.asked += 1
        return Key.is_live(self, now_ms)

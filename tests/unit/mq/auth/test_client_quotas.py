"""Quotas of Kafka's clients: whose counts for whom, and how they change (SPEC KAFKA-28)."""

from __future__ import annotations

import itertools

import pytest

from deltamq.mq.auth.changes import decide_change_quota, decide_put_principal, decide_remove_principal
from deltamq.mq.auth.client_quotas import DEFAULT, ClientQuota, narrowest
from deltamq.mq.auth.principals import quota_of
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Conflict, NotFound, Refused
from deltamq.mq.limits import CLIENT_ID_LENGTH_MAX, CLIENT_QUOTAS_MAX
from tests.unit.mq.auth.test_state import applied

IN = {"bytes_in_per_s": 5}


@pytest.fixture
def state() -> AuthState:
    return applied(AuthState(), decide_put_principal(AuthState(), "ada", "", 5))


def test_kafka_28_entities_are_looked_at_from_the_narrowest_to_the_widest() -> None:
    assert list(narrowest("ada", "app")) == [
        (("ada", "app"), ("ada", "app")),
        (("ada", DEFAULT), ("ada", "app")),
        (("ada", None), ("ada", None)),
        ((DEFAULT, "app"), ("ada", "app")),
        ((DEFAULT, DEFAULT), ("ada", "app")),
        ((DEFAULT, None), ("ada", None)),
        ((None, "app"), (None, "app")),
        ((None, DEFAULT), (None, "app")),
    ]


def test_kafka_28_every_entity_has_words_of_its_own() -> None:
    names = (None, DEFAULT, "ada", "client-id ada")
    whose = [ClientQuota(user=user, client_id=id_).whose for user, id_ in itertools.product(names[:3], names)]
    assert len(set(whose)) == len(whose)
    assert ClientQuota(user="ada", client_id=DEFAULT).whose == "user ada, default client-id"


def test_kafka_28_bounds_are_set_one_by_one_and_a_quota_without_any_is_forgotten(state: AuthState) -> None:
    whose = ClientQuota(user="ada", client_id="app")
    state = applied(state, decide_change_quota(state, whose, IN))
    assert decide_change_quota(state, whose, IN) == ()
    state = applied(state, decide_change_quota(state, whose, {"bytes_out_per_s": 7}))
    kept = ClientQuota(user="ada", client_id="app", bytes_in_per_s=5, bytes_out_per_s=7)
    assert state.client_quotas == {("ada", "app"): kept}
    assert applied(state, decide_remove_principal(state, "ada")) == AuthState(), "what is a user's goes with the user"
    state = applied(state, decide_change_quota(state, whose, {"bytes_in_per_s": None, "bytes_out_per_s": None}))
    assert state.client_quotas == {}


def test_kafka_28_the_quota_of_a_user_alone_is_the_principals(state: AuthState) -> None:
    state = AuthState(state.principals, quotas={"ada": quota_of("ada", requests_per_s=9)})
    state = applied(state, decide_change_quota(state, ClientQuota(user="ada"), IN))
    assert state.quotas == {"ada": quota_of("ada", requests_per_s=9, bytes_in_per_s=5)} and state.client_quotas == {}
    state = applied(state, decide_change_quota(state, ClientQuota(user="ada"), {"bytes_in_per_s": None}))
    assert state.quotas == {"ada": quota_of("ada", requests_per_s=9)}


def test_kafka_28_a_quota_needs_its_user_a_name_that_fits_and_room(state: AuthState) -> None:
    for whose in (ClientQuota(user="bob"), ClientQuota(user="bob", client_id="app")):
        with pytest.raises(NotFound):
            decide_change_quota(state, whose, IN)
        assert decide_change_quota(state, whose, {"bytes_in_per_s": None}) == (), "what is not there is removed"
    for client_id in ("x" * (CLIENT_ID_LENGTH_MAX + 1), "a\nb"):
        with pytest.raises(Refused, match="client-id"):
            decide_change_quota(state, ClientQuota(client_id=client_id), IN)
    every = [ClientQuota(client_id=str(number), bytes_in_per_s=1) for number in range(CLIENT_QUOTAS_MAX)]
    full = AuthState(state.principals, client_quotas={one.entity: one for one in every})
    with pytest.raises(Conflict) as refused:
        decide_change_quota(full, ClientQuota(client_id="one more"), IN)
    assert refused.value.code == "too_many_quotas"
    assert len(decide_change_quota(full, ClientQuota(client_id="7"), IN)) == 1

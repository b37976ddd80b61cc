"""By which quota a client is bounded, and with whom it shares it (SPEC KAFKA-28)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from deltamq.api.auth.quotas import Quotas
from deltamq.api.kafka.access.client_meters import ClientMeters
from deltamq.mq.auth.client_quotas import DEFAULT, ClientQuota, Entity
from deltamq.mq.auth.principals import Quota, quota_of
from deltamq.mq.auth.state import AuthState
from deltamq.mq.limits import CLIENT_METERS_MAX

#: The rate of each entity, from the narrowest to the widest.
RATES: dict[Entity, int] = {
    ("ada", "app"): 1,
    ("ada", DEFAULT): 2,
    ("ada", None): 3,
    (DEFAULT, "app"): 4,
    (DEFAULT, DEFAULT): 5,
    (DEFAULT, None): 6,
    (None, "app"): 7,
    (None, DEFAULT): 8,
}


class Clients:
    """The meters of a process whose metadata a test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.state = AuthState()
        quotas = Quotas(lambda: self.state.quotas, lambda: self.now_ms, body_bytes_max=1)
        self.meters = ClientMeters(quotas, lambda: self.state)

    def put(self, *quotas: ClientQuota, principals: tuple[Quota, ...] = ()) -> None:
        self.state = AuthState(
            quotas={one.principal: one for one in principals}, client_quotas={one.entity: one for one in quotas}
        )

    def rate(self, user: str, client_id: str, way: str = "bytes in") -> int | None:
        meter = self.meters.meter(way, user, client_id)
        bucket = None if meter is None else meter.buckets.get(way)
        return None if bucket is None else bucket.rate


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_kafka_28_the_narrowest_quota_counts(clients: Clients) -> None:
    rates = dict(RATES)
    while rates:
        clients.put(
            *(
                ClientQuota(user=u, client_id=c, bytes_in_per_s=rate)
                for (u, c), rate in rates.items()
                if u != "ada" or c is not None
            ),
            principals=(quota_of("ada", bytes_in_per_s=3),) if ("ada", None) in rates else (),
        )
        assert clients.rate("ada", "app") == min(rates.values())
        assert clients.rate("ada", "app", "bytes out") is None
        del rates[min(rates, key=lambda entity: rates[entity])]
    clients.put()
    assert clients.meters.meter("bytes in", "ada", "app") is None


def test_kafka_28_each_way_is_bounded_by_the_narrowest_quota_with_a_bound_for_it(clients: Clients) -> None:
    clients.put(
        ClientQuota(user="ada", client_id="app", bytes_in_per_s=1),
        ClientQuota(client_id="app", bytes_in_per_s=2, bytes_out_per_s=3),
        principals=(quota_of("ada", requests_per_s=9, bytes_out_per_s=4),),
    )
    assert (clients.rate("ada", "app"), clients.rate("ada", "app", "bytes out")) == (1, 4)
    assert (clients.rate("bob", "app"), clients.rate("bob", "app", "bytes out")) == (2, 3)
    meter = clients.meters.meter("bytes in", "ada", "app")
    assert meter is not None and meter.buckets["requests"].rate == 9, "whatever the client calls itself"


def test_kafka_28_all_connections_of_an_entity_share_its_quota_and_of_a_default_each_has_one(
    clients: Clients,
) -> None:
    def used_up_for(user: str, client_id: str, *others: tuple[str, str]) -> list[bool]:
        clients.now_ms += 3_600_000
        meter = clients.meters.meter("bytes in", user, client_id)
        assert meter is not None and meter.wait_s() == 0
        meter.asked(5_000)
        return [other.wait_s() > 0 for one in others if (other := clients.meters.meter("bytes in", *one)) is not None]

    others = (("ada", "app"), ("ada", "other"), ("bob", "app"), ("bob", "other"))
    for entity, shared in {
        ("ada", "app"): [True],
        (DEFAULT, DEFAULT): [True, False, False, False],
        (DEFAULT, None): [True, True, False, False],
        (None, "app"): [True, True],
        (None, DEFAULT): [True, False, True, False],
    }.items():
        clients.put(ClientQuota(user=entity[0], client_id=entity[1], bytes_in_per_s=1_000))
        assert used_up_for("ada", "app", *others) == shared, entity


def test_kafka_28_what_was_used_counts_on_when_other_metadata_change(clients: Clients) -> None:
    clients.put(ClientQuota(client_id="app", bytes_in_per_s=1_000))
    meter = clients.meters.meter("bytes in", "", "app")
    assert meter is not None
    meter.asked(5_000)
    clients.state = replace(clients.state, quotas={"ada": quota_of("ada", requests_per_s=1)})
    again = clients.meters.meter("bytes in", "", "app")
    assert again is not None and again.wait_s() == 4
    clients.put(ClientQuota(client_id="app", bytes_in_per_s=2_000))
    changed = clients.meters.meter("bytes in", "", "app")
    assert changed is not None and changed.wait_s() == 0


def test_kafka_28_clients_that_call_themselves_ever_anew_are_remembered_up_to_a_bound(clients: Clients) -> None:
    clients.put(ClientQuota(client_id=DEFAULT, bytes_in_per_s=1_000))
    for number in range(CLIENT_METERS_MAX + 10):
        assert clients.rate("", str(number)) == 1_000
    assert len(clients.meters._buckets) == len(clients.meters._meters) == 10

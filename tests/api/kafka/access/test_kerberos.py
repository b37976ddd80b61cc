"""Clients that show a Kerberos ticket, to a service of a real realm (SPEC KAFKA-29)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.kafka.messages.cluster_messages import MetadataRequest
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.user_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.api.guarded import guarded
from tests.api.kafka.access.callers import Door
from tests.api.kafka.access.calls import ANYTHING, errors_in, waiting_fetch
from tests.api.kafka.raw_client import RawClient
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.kerberos import MISSING, Client, Realm, show_ticket, the_realm

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"there is no KDC: {MISSING}")

OK = ErrorCode.NONE
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@dataclass
class Guest:
    """A service that takes tickets, its realm, and clients with a keytab."""

    door: Door
    realm: Realm
    clients: str
    service: str

    def ticket(self, principal: str = "client/localhost", **more: Any) -> Client:
        return Client(self.realm.tickets(self.clients, principal), **more)

    def shown(self, principal: str = "client/localhost", last: bytes = b"\x01\0\0\0", **more: Any) -> Any:
        """Show a ticket on a connection of its own; return the last answer."""
        with self.door.raw() as client:
            answer = show_ticket(client, self.ticket(principal, **more), last)
            assert answer.error_code == OK or client.is_closed(5)
            return answer


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Guest]:
    folder = tmp_path_factory.mktemp("realm")
    with the_realm(folder) as realm:
        keytab = realm.keytab("service.keytab", "kafka/localhost")
        clients = realm.keytab("clients.keytab", "client/localhost", "nobody/localhost", "eve")
        realm.keytab("other.keytab", "kafka/elsewhere")
        port, pair = free_port(), authority.server()
        with guarded(
            tmp_path_factory.mktemp("guarded"),
            ca=authority.ca,
            kafka_port=port,
            tls_cert=pair.cert,
            tls_key=pair.key,
            kafka_kerberos_keytab=keytab,
        ) as admin:
            admin.put_principal("client")
            admin.put_principal("eve")
            yield Guest(Door(admin, port, authority.ca), realm, clients, keytab)


def test_kafka_29_a_ticket_is_its_principal(guest, topic) -> None:
    guest.door.admin.put_topic(topic, partitions=1)
    guest.door.admin.rule("client", "topic", topic, "publish", "subscribe")
    with guest.door.raw() as client, guest.door.raw() as other:
        answer = show_ticket(client, guest.ticket())
        assert answer.error_code == OK and 3_500_000 < answer.session_lifetime_ms <= 3_900_000
        assert errors_in(client.ask(ANYTHING[MetadataRequest](topic))) == {0}
        assert show_ticket(other, guest.ticket("eve")).error_code == OK
        assert 29 in errors_in(other.ask(ANYTHING[MetadataRequest](topic))), "eve may do nothing"


@pytest.mark.parametrize("whom", [b"", b"client", b"client/localhost@EXAMPLE", b"kafka@localhost"])
def test_kafka_29_a_client_may_say_that_it_acts_for_itself(guest, whom) -> None:
    assert guest.shown(last=b"\x01\0\xff\xff" + whom).error_code == OK


def test_kafka_29_a_client_that_does_not_ask_for_a_proof_is_spared_a_message(guest) -> None:
    assert guest.shown(flags=0).error_code == OK


def test_kafka_29_the_mechanism_is_offered_where_there_is_a_keytab(guest, door) -> None:
    with guest.door.raw() as client:
        offered = client.ask(SaslHandshakeRequest("NONE")).mechanisms
        assert offered == ["GSSAPI", "SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER", "PLAIN"]
    with door.raw() as client:
        assert client.ask(SaslHandshakeRequest("GSSAPI")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_kafka_29_what_is_wrong_with_a_ticket_is_not_told(guest) -> None:
    """Of another service, over, of nobody here, garbage, cut, changed."""
    whole = guest.ticket().accept()
    sent = {
        "another service": guest.ticket(service="kafka@elsewhere").accept(),
        "garbage": b"\x60\x82" + b"x" * 200,
        "nothing": b"",
        "cut": whole[:-10],
        "changed": whole[:-10] + bytes(10),
        "large": b"x" * 60_000,
    }
    texts = set()
    for token in sent.values():
        with guest.door.raw() as client:
            client.ask(SaslHandshakeRequest("GSSAPI"))
            answer = client.ask(SaslAuthenticateRequest(token))
            texts.add((answer.error_code, answer.error_message))
            assert client.is_closed(5)
    ((code, text),) = texts
    assert code == FAILED and "the ticket is wrong" in text and "kvno" not in text
    nobody = guest.shown("nobody/localhost")
    assert nobody.error_code == FAILED and "not valid: unknown, revoked or expired" in nobody.error_message


def test_kafka_29_a_ticket_that_is_over_is_refused_and_ends_its_connection(guest, topic, monkeypatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(guest.realm.folder / "strict.conf"))
    guest.door.admin.put_topic(topic, partitions=1)
    guest.door.admin.rule("client", "topic", topic, "subscribe")
    late = Client(guest.realm.tickets(guest.clients, "client/localhost", seconds=3))
    over = Client(guest.realm.tickets(guest.clients, "client/localhost", seconds=3)).accept()
    with guest.door.raw() as client:
        answer = show_ticket(client, late)
        assert 0 < answer.session_lifetime_ms <= 5_000, "with the two seconds by which clocks may differ"
        client.send(waiting_fetch(topic))
        assert client.is_closed(10)
    with guest.door.raw() as client:
        client.ask(SaslHandshakeRequest("GSSAPI"))
        assert client.ask(SaslAuthenticateRequest(over)).error_code == FAILED


def test_kafka_29_a_session_is_renewed_by_the_same_principal_alone(guest) -> None:
    with guest.door.raw() as client:
        assert show_ticket(client, guest.ticket()).error_code == OK
        assert show_ticket(client, guest.ticket()).error_code == OK
        answer = show_ticket(client, guest.ticket("eve"))
        assert answer.error_code == FAILED and "already authenticated" in answer.error_message


def test_kafka_29_what_was_heard_is_worth_nothing(guest, monkeypatch, tmp_path) -> None:
    """Who repeats a client's messages is refused at the first; on another machine, at the last."""
    monkeypatch.setenv("KRB5RCACHENAME", "none:")  # of the service that starts here, as if it had heard nothing
    elsewhere, ticket = free_port(), guest.ticket()
    with (
        guarded(tmp_path / "other", kafka_port=elsewhere, kafka_kerberos_keytab=guest.service),
        guest.door.raw() as client,
        guest.door.raw() as thief,
        RawClient(elsewhere) as stranger,
    ):
        for one in (client, thief, stranger):
            one.ask(SaslHandshakeRequest("GSSAPI"))
        sent = [ticket.accept(), b""]
        ticket.accept(bytes(client.ask(SaslAuthenticateRequest(sent[0])).auth_bytes))
        client.ask(SaslAuthenticateRequest(sent[1]))
        sent.append(ticket.wrap(b"\x01\0\0\0"))
        assert client.ask(SaslAuthenticateRequest(sent[2])).error_code == OK
        assert thief.ask(SaslAuthenticateRequest(sent[0])).error_code == FAILED
        assert [stranger.ask(SaslAuthenticateRequest(one)).error_code for one in sent] == [OK, OK, FAILED]
        assert thief.is_closed(5) and stranger.is_closed(5)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (b"\x02\0\xff\xff", "only the layer auth"),
        (b"\x04\0\xff\xff", "only the layer auth"),
        (b"\x03\0\0\0", "only the layer auth"),
        (b"\x01", "only the layer auth"),
        (b"", "only the layer auth"),
        (b"\x01\0\0\0eve", "only for itself"),
        (b"\x01\0\0\0eve@EXAMPLE", "only for itself"),
        (b"\x01\0\0\0\xff", "only for itself"),
    ],
)
def test_kafka_29_layers_and_other_identities_are_refused(guest, last, text) -> None:
    answer = guest.shown(last=last)
    assert answer.error_code == FAILED and text in answer.error_message


def test_kafka_29_a_last_message_that_the_key_has_not_made_is_refused(guest) -> None:
    for second, last in ((b"x", None), (b"", b"\x01\0\0\0"), (b"", b"")):
        ticket = guest.ticket()
        with guest.door.raw() as client:
            client.ask(SaslHandshakeRequest("GSSAPI"))
            ticket.accept(bytes(client.ask(SaslAuthenticateRequest(ticket.accept())).auth_bytes))
            answer = client.ask(SaslAuthenticateRequest(second))
            if last is not None:
                assert answer.error_code == OK
                answer = client.ask(SaslAuthenticateRequest(last))
            assert answer.error_code == FAILED
            assert client.is_closed(5)


def test_kafka_29_a_connection_ends_when_its_principal_is_disabled(guest, topic) -> None:
    guest.door.admin.put_topic(topic, partitions=1)
    guest.door.admin.rule("client", "topic", topic, "subscribe")
    with guest.door.raw() as client:
        assert show_ticket(client, guest.ticket()).error_code == OK
        client.send(waiting_fetch(topic))
        assert guest.door.admin.call("POST", "/v1/auth/principals/client/disable").status == 200
        assert client.is_closed(15)
    answer = guest.shown()
    assert answer.error_code == FAILED and "client is disabled" in answer.error_message
    assert guest.door.admin.call("POST", "/v1/auth/principals/client/enable").status == 200
    assert guest.shown().error_code == OK


def test_kafka_29_the_services_key_changes_while_it_runs(guest) -> None:
    assert guest.shown().error_code == OK
    before = guest.ticket()
    first = before.accept()
    guest.realm.keytab("service.keytab", "kafka/localhost")  # the earlier key stays in the file
    assert guest.shown().error_code == OK
    with guest.door.raw() as client:
        client.ask(SaslHandshakeRequest("GSSAPI"))
        assert client.ask(SaslAuthenticateRequest(first)).error_code == OK, "with a ticket of before"


def test_kafka_29_a_service_with_a_name_and_realms_takes_tickets_without_tls(guest, tmp_path) -> None:
    port = free_port()
    name = {"kafka_kerberos_keytab": guest.service, "kafka_kerberos_principal": "kafka/localhost@EXAMPLE"}
    realms = ("ELSEWHERE", "EXAMPLE")
    with guarded(tmp_path, kafka_port=port, kafka_kerberos_realms=realms, **name) as admin, RawClient(port) as client:
        admin.put_principal("client")
        assert show_ticket(client, guest.ticket()).error_code == OK
        assert client.ask(MetadataRequest(topics=None)).topics == []


def test_kafka_29_a_realm_that_is_not_the_services_is_refused(guest, tmp_path) -> None:
    port = free_port()
    keytab = {"kafka_kerberos_keytab": guest.service, "kafka_kerberos_realms": ("ELSEWHERE",)}
    with guarded(tmp_path, kafka_port=port, **keytab) as admin, RawClient(port) as client:
        admin.put_principal("client")
        answer = show_ticket(client, guest.ticket())
        assert answer.error_code == FAILED and "the ticket is wrong" in answer.error_message


def test_kafka_29_many_show_tickets_at_once(guest: Guest, tmp_path: Path) -> None:
    tickets = guest.realm.tickets(guest.clients, "client/localhost")
    clients = [guest.door.raw() for _ in range(32)]
    shown = [Client(tickets) for _ in clients]
    for client in clients:
        client.ask(SaslHandshakeRequest("GSSAPI"))
    frames = [client.send(SaslAuthenticateRequest(one.accept())) for client, one in zip(clients, shown, strict=True)]
    answers = [client.receive(frame) for client, frame in zip(clients, frames, strict=True)]
    assert {one.error_code for one in answers} == {OK}
    for client in clients:
        client.socket.close()

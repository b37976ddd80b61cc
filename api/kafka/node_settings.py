"""Kafka's settings of nodes that say something true of a process of this service; none can be changed by Kafka's calls.

All defaults of topics are here. Of the other settings, those are here that a client or a tool can use: addresses,
limits, switches. Values about Kafka's threads, replicas and controllers would be invented.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from deltamq.api.kafka.topic_settings import INT_MAX, TOPIC_SETTINGS, Kind, Shown, Source
from deltamq.mq.limits import COMMIT_METADATA_BYTES_MAX, FETCH_BYTES_MAX, PRODUCER_WINDOW_MS, RETENTION_MS_DEFAULT
from deltamq.mq.members import MEMBERS_MAX, SESSION_MS_MAX
from deltamq.mq.routing import DEFAULT_PARTITIONS
from deltamq.tables.config_sections import ServiceSettings, TlsClientAuth

_HOUR_MS: Final = 3_600_000
_CLIENT_AUTH: Final = {
    TlsClientAuth.NONE: "none",
    TlsClientAuth.OPTIONAL: "requested",
    TlsClientAuth.REQUIRED: "required",
}


def shown_of_node(settings: ServiceSettings, node_id: int, advertised: str, mechanisms: Sequence[str]) -> list[Shown]:
    """Return the settings of this process, `advertised` for Kafka's clients, which may use SASL's `mechanisms`."""
    return [
        *_own(settings, node_id, advertised),
        *_access(settings, mechanisms),
        *_of_groups(settings),
        *_of_topics(),
    ]


def _own(settings: ServiceSettings, node_id: int, advertised: str) -> Iterator[Shown]:
    protocol = ("SASL_" if settings.auth else "") + ("SSL" if settings.tls_cert else "PLAINTEXT")
    says = "The number of this process, made of its address."
    yield Shown("node.id", str(node_id), Source.NODE, Kind.INT, says, True)
    yield Shown("broker.id", str(node_id), Source.NODE, Kind.INT, says, True)
    yield Shown("broker.rack", None, Source.DEFAULT, Kind.STRING, "Processes have no racks.", True)
    yield Shown("process.roles", "broker", Source.NODE, Kind.LIST, "Every process serves clients.", True)
    yield Shown(
        "listeners",
        f"{protocol}://{settings.host}:{settings.kafka_port}",
        Source.NODE,
        Kind.LIST,
        "service.host and service.kafka_port.",
        True,
    )
    yield Shown(
        "advertised.listeners", f"{protocol}://{advertised}", Source.NODE, Kind.LIST, "service.kafka_address.", True
    )
    yield _set("connections.max.idle.ms", Kind.LONG, settings.kafka_idle_s * 1_000, "service.kafka_idle_s.")
    yield _set("socket.request.max.bytes", Kind.INT, settings.request_bytes_max, "service.request_bytes_max.")
    yield _set("auto.create.topics.enable", Kind.BOOLEAN, settings.auto_create_topics, "service.auto_create_topics.")
    yield _fixed("delete.topic.enable", Kind.BOOLEAN, True, "Topics can be deleted.")
    partitions = settings.kafka_partitions or DEFAULT_PARTITIONS
    yield _set("num.partitions", Kind.INT, partitions, "service.kafka_partitions.")
    yield _fixed("default.replication.factor", Kind.INT, 1, "The store keeps the copies.")
    yield _fixed("auto.leader.rebalance.enable", Kind.BOOLEAN, False, "Any process may append and read.")
    yield _fixed("fetch.max.bytes", Kind.INT, FETCH_BYTES_MAX, "Most bytes of an answer to a fetch.")
    yield _fixed("max.incremental.fetch.session.cache.slots", Kind.INT, 0, "There are no fetch sessions.")
    yield _fixed("producer.id.expiration.ms", Kind.INT, PRODUCER_WINDOW_MS, "How long a producer is remembered.")


def _access(settings: ServiceSettings, mechanisms: Sequence[str]) -> Iterator[Shown]:
    offered = ",".join(mechanisms) if settings.auth else ""
    yield _set("sasl.enabled.mechanisms", Kind.LIST, offered, "There are some with service.auth.")
    yield _set("ssl.client.auth", Kind.STRING, _CLIENT_AUTH[settings.tls_client_auth], "service.tls_client_auth.")


def _of_groups(settings: ServiceSettings) -> Iterator[Shown]:
    yield _fixed("group.coordinator.rebalance.protocols", Kind.LIST, "classic", "The protocols of consumer groups.")
    shortest = settings.kafka_session_min_ms
    yield _set("group.min.session.timeout.ms", Kind.INT, shortest, "service.kafka_session_min_ms.")
    yield _fixed("group.max.session.timeout.ms", Kind.INT, SESSION_MS_MAX, "Longest session of a member.")
    yield _fixed("group.max.size", Kind.INT, MEMBERS_MAX, "Most members of a group.")
    yield _fixed("offset.metadata.max.bytes", Kind.INT, COMMIT_METADATA_BYTES_MAX, "Longest text of a commit.")
    yield _fixed("offsets.retention.minutes", Kind.INT, INT_MAX, "Committed offsets do not expire.")


def _of_topics() -> Iterator[Shown]:
    says = "The default of a topic's "
    for name, setting in TOPIC_SETTINGS.items():
        if setting.of_node is not None:
            yield Shown(setting.of_node, setting.default, Source.DEFAULT, setting.kind, f"{says}{name}.", True)
    for name, of_topic, hours in (
        ("log.retention.hours", "retention.ms", RETENTION_MS_DEFAULT // _HOUR_MS),
        ("log.roll.hours", "segment.ms", int(TOPIC_SETTINGS["segment.ms"].default) // _HOUR_MS),
    ):
        yield _fixed(name, Kind.INT, hours, f"{says}{of_topic}.")
    yield _fixed("log.cleaner.enable", Kind.BOOLEAN, False, "Older values of a key are kept.")
    yield _fixed("remote.log.storage.system.enable", Kind.BOOLEAN, False, "There is no second store.")


def _set(name: str, kind: Kind, value: str | float, says: str) -> Shown:
    return Shown(name, _text(value), Source.NODE, kind, says, True)


def _fixed(name: str, kind: Kind, value: str | float, says: str) -> Shown:
    return Shown(name, _text(value), Source.DEFAULT, kind, says, True)


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The sections of the settings: the meaning, default and bounds of each setting (`tables.config` loads them)."""

from __future__ import annotations

import enum
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from deltamq.mq.errors import Refused
from deltamq.mq.limits import (
    AUTHORIZATION_MS_DEFAULT,
    BUFFER_CHECKPOINTS_MAX,
    CLUSTER_SECRET_LENGTH_MIN,
    COMMIT_WINDOW_MS_MAX,
    FETCH_BYTES_MAX,
    INVISIBLE_MS_CEILING,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    KIB,
    LEASE_MARGIN_MS,
    LEASE_MS_DEFAULT,
    LEASE_RENEW_MS,
    MIB,
    PARTITION_CHECKPOINTS_MAX,
    PARTITIONS_MAX,
    REQUEST_BYTES_MAX,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
    STAY_BUFFER_MS,
)
from deltamq.mq.members import SESSION_MS_MAX, SESSION_MS_MIN
from deltamq.mq.names import check_broker
from deltamq.tables.settings import SettingsDisagree


class Secret:
    """Text that is hidden in `repr` and returned only by `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret('***')" if self._text else "Secret('')"


class WarehouseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the tables."""

    #: Folder, or URL of an object store (s3://, gs://, abfss://), whose credentials come from the environment.
    uri: str = "warehouse"
    #: Part of the names of the queue's own logs; all services and jobs of one warehouse must use the same.
    cluster: str = "deltamq"

    def __post_init__(self) -> None:
        try:
            check_broker(self.cluster)
        except Refused:
            rule = "must be 1 to 127 characters of A-Z a-z 0-9 . _ - and not '.' or '..'"
            raise SettingsDisagree(rule, "warehouse.cluster") from None


class TlsClientAuth(enum.Enum):
    """Whether clients of the service show a certificate."""

    NONE = "none"  #: they are not asked for one
    OPTIONAL = "optional"  #: one that is shown must be signed by `tls_client_ca`
    REQUIRED = "required"  #: a connection without one that `tls_client_ca` has signed is refused


class KafkaTls(enum.Enum):
    """Whether Kafka's clients speak TLS where the service has a certificate."""

    REQUIRED = "required"  #: a connection without it is closed
    OPTIONAL = "optional"  #: the first byte of a connection says; without it, keys are proved by SCRAM only


class AuditWhen(enum.Enum):
    """When the service records administrative acts and refusals."""

    WITH_AUTH = "with_auth"  #: if callers are authenticated
    ALWAYS = "always"  #: without authentication, records have only addresses
    NEVER = "never"


class TlsPrincipal(enum.Enum):
    """Which part of a client's certificate names the calling principal."""

    NONE = "none"  #: nothing: certificates only open connections
    COMMON_NAME = "common_name"  #: the subject's common name
    URI = "uri"  #: the URI in its alternative names, with `:` for `//` and `/`
    SUBJECT = "subject"  #: the whole subject: `cert:` and the beginning of its SHA-256


class LogFormat(enum.Enum):
    """The form of the service's log."""

    LINE = "line"
    JSON = "json"


class LogLevel(enum.Enum):
    """From which level on the service logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one service process."""

    #: Host name or IP address on which the service listens.
    host: str = "127.0.0.1"
    #: Port on which the service listens; 0 takes a free one, which the line `serving http://...` names.
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    #: URL under which clients and other processes reach the service; if empty, the address on which it listens.
    address: str = ""
    #: Port on which Kafka's clients are served; 0 for none. It is on the same host.
    kafka_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    #: HOST:PORT under which Kafka's clients reach the service; if empty, the address on which it listens for them.
    kafka_address: str = ""
    #: Whether Kafka's clients must speak TLS if the service has a certificate; "optional" serves both on one port.
    kafka_tls: KafkaTls = KafkaTls.REQUIRED
    #: The service's keys for Kerberos, a keytab; if empty, Kafka's clients show no tickets. It may be replaced while
    #: the service runs.
    kafka_kerberos_keytab: str = ""
    #: The service's own Kerberos principal, as kafka/broker.example.com@EXAMPLE.COM; if empty, kafka on any host that
    #: the keytab has.
    kafka_kerberos_principal: str = ""
    #: Realms of Kerberos whose clients are principals by the first part of their name; if empty, the service's own.
    kafka_kerberos_realms: tuple[str, ...] = ()
    #: Idle time after which a connection of a Kafka client is closed, in seconds.
    kafka_idle_s: Annotated[int, Meta(ge=1, le=86_400)] = 600
    #: Partitions of a topic that a Kafka client makes without a number, or by its first use; 0 for the default route.
    kafka_partitions: Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)] = 0
    #: Shortest session timeout that a member of a Kafka group may ask for, in milliseconds.
    kafka_session_min_ms: Annotated[int, Meta(ge=1_000, le=SESSION_MS_MAX)] = SESSION_MS_MIN
    #: The form of the log: "line", or "json", an object for each event.
    log_format: LogFormat = LogFormat.LINE
    #: From which level on the service logs: "debug", "info", "warning" or "error"; `deltamq log-level` changes it.
    log_level: LogLevel = LogLevel.INFO
    #: Requests that take longer are logged with where the time went, in milliseconds; 0 logs none.
    slow_request_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    #: URL of a collector that takes OTLP over HTTP, to which spans of requests are sent; if empty, none are made.
    traces_url: str = ""
    #: The share of requests that begin a trace, 0 to 1; a caller's trace is followed if it is sampled.
    traces_sample: Annotated[float, Meta(ge=0, le=1)] = 0.01
    #: Brokers that this process hosts; it also hosts the brokers of other processes while those are down.
    brokers: tuple[str, ...] = ("broker-a", "broker-b")
    #: The other clusters that may share global topics with this one, each as NAME=URL; a name may have several URLs.
    clusters: tuple[str, ...] = ()
    #: Secret, at least 32 characters, by which clusters that share global topics know each other; the same in all of
    #: them, and not `cluster_secret`.
    clusters_shared_secret: Secret = msgspec.field(default_factory=Secret)
    #: Interval at which copies of global topics are compared with their homes', in milliseconds.
    clusters_refresh_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 5_000
    #: How long a process that does not answer others has to renew its lease, in milliseconds; then they take its
    #: brokers over. The same in all processes, as the next two.
    lease_ms: Annotated[int, Meta(ge=500, le=600_000)] = LEASE_MS_DEFAULT
    #: A process looks at the metadata at least twice in this time, in milliseconds: its lease goes on from there.
    lease_renew_ms: Annotated[int, Meta(ge=50, le=300_000)] = LEASE_RENEW_MS
    #: Stop serving this many milliseconds before the lease expires: for clocks that drift, and for requests in flight.
    lease_margin_ms: Annotated[int, Meta(ge=50, le=60_000)] = LEASE_MARGIN_MS
    #: A client of an exclusive group loses its partitions after this many milliseconds without a heartbeat.
    authorization_ms: Annotated[int, Meta(ge=500, le=600_000)] = AUTHORIZATION_MS_DEFAULT
    #: Whether a produce request to a topic that does not exist creates it, with the default route.
    auto_create_topics: bool = True
    #: Whether consuming as a group that does not exist creates it, with default settings.
    auto_create_groups: bool = True
    #: Time for requests in flight to finish after SIGTERM, in milliseconds.
    drain_ms: Annotated[int, Meta(ge=0, le=600_000)] = 10_000
    #: Whether each caller must send a key (`Authorization: Bearer mqk_...`), and may do what access rules grant.
    auth: bool = False
    #: Secret, at least 32 characters, by which processes of the cluster know each other; the same in all of them.
    cluster_secret: Secret = msgspec.field(default_factory=Secret)
    #: URL of a schema registry elsewhere, of Confluent's REST API; if empty, the one at `/schemas` is the only one.
    schemas_url: str = ""
    #: USER:PASSWORD for it, if it asks for them.
    schemas_user: Secret = msgspec.field(default_factory=Secret)
    #: Certificates of the authorities that sign its certificate, a file in PEM; if empty, the system's.
    schemas_ca: str = ""
    #: When administrative acts and refusals are recorded in `sys/audit`: `with_auth`, `always` or `never`.
    audit: AuditWhen = AuditWhen.WITH_AUTH
    #: Whether the service may listen beyond this machine without authentication; only behind an authenticating proxy.
    allow_open_access: bool = False
    #: The service's certificate with its chain, a file in PEM; if empty, the service speaks HTTP without TLS. The files
    #: of TLS may be replaced while the service runs.
    tls_cert: str = ""
    #: The certificate's key, a file in PEM; if empty, it is in `tls_cert`.
    tls_key: str = ""
    #: Certificates of the authorities that sign clients' certificates, a file in PEM.
    tls_client_ca: str = ""
    #: Whether clients show a certificate.
    tls_client_auth: TlsClientAuth = TlsClientAuth.NONE
    #: Which part of a client's certificate names its principal, if the request has no key or token.
    tls_principal: TlsPrincipal = TlsPrincipal.NONE
    #: Certificates of the authorities that sign other processes' certificates, a file in PEM; if empty, the system's.
    tls_ca: str = ""
    #: Largest body of a produce request, in bytes.
    request_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=REQUEST_BYTES_MAX)] = 64 * MIB
    #: Longest time in which a produce request's body must arrive, in milliseconds.
    request_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 60_000
    #: Most bytes of produce requests that are received, decoded or waiting at once; beyond this, producers get 429.
    queue_bytes_max: Annotated[int, Meta(ge=MIB, le=1024 * 1024 * MIB)] = 256 * MIB
    #: Most produce requests at once; beyond this, producers get 429.
    queue_requests_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    #: Most bytes of rows in fetch answers that are being sent at once; beyond this, readers get 429.
    answer_bytes_max: Annotated[int, Meta(ge=FETCH_BYTES_MAX, le=1024 * 1024 * MIB)] = 512 * MIB
    #: How long messages wait for others that share their commit, in topics without a setting of their own, in
    #: milliseconds; 0 commits at once.
    commit_window_ms: Annotated[int, Meta(ge=0, le=COMMIT_WINDOW_MS_MAX)] = 0
    #: Native threads that make the file calls of commits: so many partitions write to a disk at once.
    commit_threads: Annotated[int, Meta(ge=1, le=256)] = 8
    #: Most calls of an object store for commits that are under way at once; further ones wait.
    store_calls_max: Annotated[int, Meta(ge=1, le=65_536)] = 256
    #: Number of threads that decode large requests and read history.
    work_threads: Annotated[int, Meta(ge=1, le=256)] = 4
    #: Interval at which a partition with waiting readers is checked for commits of other processes, in milliseconds.
    refresh_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    #: Most connections at once; further ones are closed.
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    #: Idle time after which a connection is closed, in seconds.
    keep_alive_s: Annotated[int, Meta(ge=1, le=3_600)] = 75
    #: Most groups and partitions with series of their own in each gauge of /metrics: those with the greatest values.
    metrics_top: Annotated[int, Meta(ge=1, le=10_000)] = 100

    @property
    def is_audited(self) -> bool:
        """Whether administrative acts are recorded."""
        return self.audit is AuditWhen.ALWAYS or (self.auth and self.audit is AuditWhen.WITH_AUTH)

    def __post_init__(self) -> None:
        if not self.brokers or len(set(self.brokers)) != len(self.brokers):
            raise SettingsDisagree("must name at least one broker, and none twice", "service.brokers")
        for cluster in self.clusters:
            name, _, url = cluster.partition("=")
            try:
                check_broker(name)
            except Refused as error:
                raise SettingsDisagree(f"must be NAME=URL: {error.detail}", "service.clusters") from None
            if not url.startswith(("http://", "https://")) or "/" in url.partition("://")[2]:
                raise SettingsDisagree("must be NAME=URL, with a URL without a path", "service.clusters")
        host, _, port = self.kafka_address.rpartition(":")
        if self.kafka_address and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise SettingsDisagree("must be HOST:PORT, with a port from 1 to 65535", "service.kafka_address")
        self._check_kerberos()
        if self.lease_renew_ms + 2 * self.lease_margin_ms >= self.lease_ms:
            parts = ("service.lease_renew_ms", "service.lease_margin_ms")
            rule = "must be greater than lease_renew_ms + 2 * lease_margin_ms"
            raise SettingsDisagree(rule, "service.lease_ms", *parts)
        for name, secret in (
            ("cluster_secret", self.cluster_secret),
            ("clusters_shared_secret", self.clusters_shared_secret),
        ):
            if secret and len(secret.reveal()) < CLUSTER_SECRET_LENGTH_MIN:
                rule = f"must have at least {CLUSTER_SECRET_LENGTH_MIN} characters, and be random"
                raise SettingsDisagree(rule, f"service.{name}")
        if self.cluster_secret and self.cluster_secret == self.clusters_shared_secret:
            rule = "must not be service.cluster_secret: other clusters must not pass for processes of this one"
            raise SettingsDisagree(rule, "service.clusters_shared_secret", "service.cluster_secret")
        if self.queue_bytes_max < self.request_bytes_max:
            keys = ("service.queue_bytes_max", "service.request_bytes_max")
            raise SettingsDisagree("must be at least service.request_bytes_max", *keys)
        _check_collector(self.traces_url, "service.traces_url")
        self._check_tls()

    def _check_kerberos(self) -> None:
        keytab = "service.kafka_kerberos_keytab"
        if self.kafka_kerberos_keytab and not self.auth:
            raise SettingsDisagree("needs service.auth", keytab, "service.auth")
        for name, value in (("principal", self.kafka_kerberos_principal), ("realms", self.kafka_kerberos_realms)):
            if value and not self.kafka_kerberos_keytab:
                raise SettingsDisagree(f"needs {keytab}", f"service.kafka_kerberos_{name}", keytab)

    def _check_tls(self) -> None:
        if self.tls_principal is not TlsPrincipal.NONE and (
            self.tls_client_auth is TlsClientAuth.NONE or not self.auth
        ):
            needed = ("service.auth", "service.tls_client_auth")
            raise SettingsDisagree(f"needs {' and '.join(needed)}", "service.tls_principal", *needed)
        if self.tls_key and not self.tls_cert:
            raise SettingsDisagree("must be set, too, if service.tls_key is", "service.tls_cert", "service.tls_key")
        if self.tls_client_auth is TlsClientAuth.NONE:
            if self.tls_client_ca:
                keys = ("service.tls_client_auth", "service.tls_client_ca")
                raise SettingsDisagree("must be optional or required if service.tls_client_ca is set", *keys)
            return
        if not self.tls_cert or not self.tls_client_ca:
            needed = ("service.tls_cert", "service.tls_client_ca")
            raise SettingsDisagree(f"needs {' and '.join(needed)}", "service.tls_client_auth", *needed)
        if self.tls_client_auth is TlsClientAuth.REQUIRED and self.kafka_tls is KafkaTls.OPTIONAL:
            rule = "must be required if service.tls_client_auth is: a client without TLS shows no certificate"
            raise SettingsDisagree(rule, "service.kafka_tls", "service.tls_client_auth")


def _check_collector(url: str, key: str) -> None:
    scheme, _, rest = url.partition("://")
    is_url = scheme in ("http", "https") and rest.partition("/")[0] and not set(url) & set(" \t\r\n")
    if url and not is_url:
        raise SettingsDisagree("must be http://HOST:PORT or https://HOST:PORT of a collector", key)


def traces_endpoint(url: str) -> str:
    """Return the URL to which traces are posted: a collector's as it is, or its usual path if it names none."""
    host, _, path = url.partition("://")[2].partition("/")
    return url if host and path else f"{url.rstrip('/')}/v1/traces"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of groups and POP, for the service and the jobs."""

    #: Whether checkpoints and acks are matched in memory; if false, each is stored.
    memory_match: bool = True
    #: Time after which a checkpoint in memory is stored, in milliseconds.
    stay_buffer_ms: Annotated[int, Meta(ge=100, le=600_000)] = STAY_BUFFER_MS
    #: Most checkpoints in memory; further ones are stored at once.
    buffer_checkpoints_max: Annotated[int, Meta(ge=0, le=10_000_000)] = BUFFER_CHECKPOINTS_MAX
    #: The same, for one partition.
    partition_checkpoints_max: Annotated[int, Meta(ge=0, le=10_000_000)] = PARTITION_CHECKPOINTS_MAX
    #: Shortest invisible time that clients may request, in milliseconds ...
    invisible_ms_min: Annotated[int, Meta(ge=1, le=INVISIBLE_MS_CEILING)] = INVISIBLE_MS_MIN
    #: ... and the longest, in milliseconds.
    invisible_ms_max: Annotated[int, Meta(ge=1, le=INVISIBLE_MS_CEILING)] = INVISIBLE_MS_MAX
    #: Interval at which changed offsets of groups are stored, in milliseconds.
    commit_every_ms: Annotated[int, Meta(ge=10, le=60_000)] = 200
    #: Secret that signs handles, as 32 or more hexadecimal digits; if empty, the warehouse generates and keeps one.
    handle_secret: Secret = msgspec.field(default_factory=Secret)

    def __post_init__(self) -> None:
        if self.invisible_ms_min > self.invisible_ms_max:
            keys = ("queue.invisible_ms_min", "queue.invisible_ms_max")
            raise SettingsDisagree("must not be above queue.invisible_ms_max", *keys)
        if self.partition_checkpoints_max > self.buffer_checkpoints_max:
            keys = ("queue.partition_checkpoints_max", "queue.buffer_checkpoints_max")
            raise SettingsDisagree("must not be above queue.buffer_checkpoints_max", *keys)


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages are kept, besides the messages of topics, which have their own `retention_ms`."""

    #: Whether messages that a group has not committed yet are kept at any age.
    wait_for_groups: bool = False
    #: How long delayed messages are kept in the delay log after their deliver time, in milliseconds.
    delayed_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] = RETENTION_MS_DEFAULT
    #: How long retried messages are kept, and messages popped in order after the end of their lease, in milliseconds.
    retry_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] = RETENTION_MS_DEFAULT
    #: How long dead letters are kept, in milliseconds.
    dead_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] = 10 * RETENTION_MS_DEFAULT
    #: How long records of the queue's own logs are kept once the merge job has them in its tables, in milliseconds.
    system_ms: Annotated[int, Meta(ge=60_000, le=RETENTION_MS_MAX)] = 3_600_000
    #: How long administrative acts and refusals are kept, in milliseconds: 400 days.
    audit_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] = 400 * 24 * 3_600_000
    #: How long samples of lag, rates and other gauges are kept, in milliseconds: 30 days.
    history_ms: Annotated[int, Meta(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX)] = 30 * 24 * 3_600_000


class Engine(enum.Enum):
    """What carries out the jobs."""

    LOCAL = "local"  #: one process, which follows due messages in memory: the least delay, on one machine
    SPARK = "spark"  #: Spark tasks, divided by broker and queue: scales with the cluster (SPEC SPARK-7)


class JobsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the Spark application that runs the jobs, and of users' Spark sessions on one machine."""

    #: "local" follows due messages in the memory of one process, "spark" finds and moves them in tasks.
    engine: Engine = Engine.SPARK
    #: Master of the Spark session; ignored where a session exists already (Databricks, Spark Connect).
    master: str = "local[*]"
    #: Memory of the driver, in Spark's notation.
    driver_memory: str = "2g"
    #: Number of tasks after a shuffle: more only pay on a cluster.
    shuffle_partitions: Annotated[int, Meta(ge=1, le=100_000)] = 2
    #: Number of tasks that rebuild a Delta table's state: Delta's default of 50 doubles the time of a small MERGE.
    snapshot_partitions: Annotated[int, Meta(ge=1, le=100_000)] = 2
    #: Whether the Spark UI opens its port.
    ui: bool = False
    #: Port of the jobs' /metrics and /readyz, which ask for no key; 0: none.
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    #: Address of that port; 0.0.0.0 is every address of the machine.
    metrics_host: str = "127.0.0.1"
    #: URL of a collector that takes OTLP over HTTP, to which spans of runs are sent; if empty, none are made.
    traces_url: str = ""
    #: The form of the log of `deltamq jobs run`: "line", or "json", an object for each event, on stderr.
    log_format: LogFormat = LogFormat.LINE
    #: From which level on the jobs log: "debug", "info", "warning" or "error".
    log_level: LogLevel = LogLevel.INFO
    #: Longest run of a job, in seconds; a longer one is cancelled.
    run_s_max: Annotated[int, Meta(ge=1, le=31_536_000)] = 3_600
    #: Most data that tasks of one Spark action may send to the driver, in Spark's notation; more fails that action.
    result_size_max: str = "512m"
    #: Interval at which records are merged into the state tables, in milliseconds.
    merge_every_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 2_000
    #: Interval of the search for messages that were not acknowledged in time, in milliseconds.
    revive_every_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 250
    #: Interval of the search for delayed messages that are due, in milliseconds.
    delay_every_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 250
    #: Interval of both searches with the engine "spark", where each is a Spark job, in milliseconds.
    spark_look_every_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 1_000
    #: Interval at which messages past their retention time are removed, in seconds.
    retain_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 60
    #: Interval at which small files of partitions are compacted, in seconds.
    compact_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 600
    #: Size of a compacted file, in bytes; a file of half the size is final. A task takes about twice as much memory.
    compact_target_bytes: Annotated[int, Meta(ge=64 * KIB, le=1024 * MIB)] = 128 * MIB
    #: Interval at which requests to erase keys are looked at, in seconds.
    erase_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 60
    #: Interval at which the defined exports append new messages, in seconds.
    export_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 60
    #: Interval at which `latest` merges the newest values of typed topics, in seconds.
    latest_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 60
    #: The typed topics of which `latest` keeps a table, as a regular expression; empty: none.
    latest_topics: str = ".*"
    #: Interval at which `replay` and `reset` check for scheduled runs that are due, in seconds.
    scheduled_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 30
    #: Interval at which `verify` checks every partition, in seconds.
    verify_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 3_600
    #: Number of partitions, in turn, that each `verify` run also counts with Spark's own Delta reader, a cross-check.
    verify_sample: Annotated[int, Meta(ge=0, le=1_000_000)] = 4
    #: Interval at which the catalog is updated with the topics, in seconds.
    catalog_every_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 300
    #: Schema of the catalog's tables and views: SCHEMA or CATALOG.SCHEMA.
    catalog_schema: str = "deltamq"

    def __post_init__(self) -> None:
        _check_collector(self.traces_url, "jobs.traces_url")
        try:
            re.compile(self.latest_topics)
        except re.error as error:
            raise SettingsDisagree(f"must be a regular expression: {error}", "jobs.latest_topics") from error


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which the demo, jobs and notebooks reach a service."""

    #: URL of the service for the demo, jobs and notebooks.
    url: str = "http://127.0.0.1:8080"
    #: Token that is sent as `Authorization: Bearer ...`, if not empty.
    token: Secret = msgspec.field(default_factory=Secret)
    #: Identity provider that gives tokens for a client's id and secret, if there is no token; if empty, none.
    oidc_issuer: str = ""
    #: The client's id at the provider.
    oidc_client_id: str = ""
    #: The client's secret at the provider.
    oidc_client_secret: Secret = msgspec.field(default_factory=Secret)
    #: Scope to request from the provider, if it needs one.
    oidc_scope: str = ""
    #: Audience of the token, if the provider needs one.
    oidc_audience: str = ""
    #: Certificates of the authorities that sign the provider's certificate, a file in PEM; if empty, the system's.
    oidc_ca: str = ""
    #: Certificates of the authorities that sign the service's certificate, a file in PEM; if empty, the system's.
    ca: str = ""
    #: Certificate that clients show to the service, a file in PEM; if empty, none.
    cert: str = ""
    #: The key of that certificate, a file in PEM; if empty, it is in `cert`.
    key: str = ""

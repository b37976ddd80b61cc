"""Every setting, from four places, in one frozen object.

    defaults of the dataclasses below  <  conf/<profile>.toml  <  DELTAMQ_<SECTION>_<KEY>  <  flags

A key that nobody knows, a value of the wrong type and one out of range are errors that name the key, where it
was set, and what to do. `conf/local.toml` shows every setting with its default, and a test compares the two:
an installation without the file behaves the same. Secrets do not show in `repr` nor in `describe`.
"""

from __future__ import annotations

import difflib
import enum
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from mq.errors import DeltaMQError, Refused
from mq.limits import (
    FETCH_BYTES_MAX,
    KIB,
    MIB,
    REQUEST_BYTES_MAX,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MAX,
    RETENTION_MS_MIN,
)
from mq.names import check_broker
from mq.queue_limits import (
    BUFFER_CHECKPOINTS_MAX,
    INVISIBLE_MS_CEILING,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    PARTITION_CHECKPOINTS_MAX,
    STAY_BUFFER_MS,
)
from tables.settings import LogSettings

__all__ = [
    "ClientSettings",
    "Config",
    "ConfigInvalid",
    "JobsSettings",
    "QueueSettings",
    "RetentionSettings",
    "Secret",
    "ServiceSettings",
    "WarehouseSettings",
    "conf_folder",
    "describe",
    "load",
]

Value: TypeAlias = str | int | float | bool | list[str] | tuple[str, ...] | enum.Enum | None

ENV_PREFIX: Final = "DELTAMQ_"
#: Variables that are no settings: where the settings, the jars and the command line's service are.
ENV_OTHER: Final = frozenset({"DELTAMQ_CONF", "DELTAMQ_JARS", "DELTAMQ_PROFILE", "DELTAMQ_URL"})
TRUE, FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


class ConfigInvalid(Refused):
    """A setting is unknown, of the wrong type, or out of range."""

    code = "config_invalid"


class Secret:
    """Text that shows itself only when asked by name."""

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


def _between(default: int, low: int, high: int) -> int:
    """A whole number with bounds, both included."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """Where the tables are."""

    #: A folder, or a URL of an object store (s3://, gs://, abfss://), with credentials in the environment.
    uri: str = "warehouse"
    #: Part of the names of the queue's own logs; services and jobs of one warehouse must agree on it.
    cluster: str = "deltamq"

    def __post_init__(self) -> None:
        try:
            check_broker(self.cluster)
        except Refused:
            raise ValueError("warehouse.cluster: 1 to 127 characters of A-Z a-z 0-9 . _ -") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """One service process."""

    #: Where it listens.
    host: str = "127.0.0.1"
    #: 0 takes a free port, which the line `serving http://...` names.
    port: int = _between(8080, 0, 65_535)
    #: The broker groups that this process hosts.
    brokers: tuple[str, ...] = ("broker-a", "broker-b")
    #: A topic that is produced to before it exists is created with the default route.
    auto_create_topics: bool = True
    #: A group that consumes before it exists is created with default settings.
    auto_create_groups: bool = True
    #: After SIGTERM, requests in flight get so long to end.
    drain_ms: int = _between(10_000, 0, 600_000)
    #: Whether it may listen beyond this machine without authentication: only behind a proxy that authenticates.
    allow_open_access: bool = False
    #: A produce request's body has at most so many bytes.
    request_bytes_max: int = _between(64 * MIB, 64 * KIB, REQUEST_BYTES_MAX)
    #: A produce request's body has so long to arrive.
    request_ms: int = _between(60_000, 100, 3_600_000)
    #: Bytes of produce requests that are received, decoded or waiting at once; beyond it producers get 429.
    queue_bytes_max: int = _between(256 * MIB, MIB, 1024 * 1024 * MIB)
    #: Produce requests at once; beyond it producers get 429.
    queue_requests_max: int = _between(4_096, 1, 1_000_000)
    #: Bytes of rows in fetch answers that are being sent; beyond it readers get 429.
    answer_bytes_max: int = _between(512 * MIB, FETCH_BYTES_MAX, 1024 * 1024 * MIB)
    #: Commits of different partitions that run at the same time.
    commit_threads: int = _between(8, 1, 256)
    #: Threads that decode large requests and read history.
    work_threads: int = _between(4, 1, 256)
    #: A partition with waiting readers is looked at this often for commits of other processes.
    refresh_ms: int = _between(100, 1, 60_000)
    #: Connections at once; further ones are closed.
    connections_max: int = _between(10_000, 1, 1_000_000)
    #: An idle connection is closed after so long.
    keep_alive_s: int = _between(75, 1, 3_600)

    def __post_init__(self) -> None:
        if not self.brokers or len(set(self.brokers)) != len(self.brokers):
            raise ValueError("service.brokers must name at least one broker, and none twice")
        if self.queue_bytes_max < self.request_bytes_max:
            raise ValueError("service.queue_bytes_max must be at least service.request_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Groups and POP, for the service and the jobs."""

    #: Checkpoints and acknowledgements meet in memory; off, each is stored.
    memory_match: bool = True
    #: A checkpoint that stays longer in memory is stored.
    stay_buffer_ms: int = _between(STAY_BUFFER_MS, 100, 600_000)
    #: Checkpoints that are in memory at once; beyond, they are stored at once.
    buffer_checkpoints_max: int = _between(BUFFER_CHECKPOINTS_MAX, 0, 10_000_000)
    #: The same for one partition.
    partition_checkpoints_max: int = _between(PARTITION_CHECKPOINTS_MAX, 0, 10_000_000)
    #: The shortest invisible time that clients may ask for ...
    invisible_ms_min: int = _between(INVISIBLE_MS_MIN, 1, INVISIBLE_MS_CEILING)
    #: ... and the longest.
    invisible_ms_max: int = _between(INVISIBLE_MS_MAX, 1, INVISIBLE_MS_CEILING)
    #: How often the offsets of groups that have moved are stored.
    commit_every_ms: int = _between(200, 10, 60_000)
    #: Signs handles, as 32 or more hexadecimal digits; when empty, the warehouse keeps one that it made itself.
    handle_secret: Secret = field(default_factory=Secret)

    def __post_init__(self) -> None:
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ValueError("queue.invisible_ms_min must not be above queue.invisible_ms_max")
        if self.partition_checkpoints_max > self.buffer_checkpoints_max:
            raise ValueError("queue.partition_checkpoints_max must not be above queue.buffer_checkpoints_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept; a topic's own `retention_ms` wins."""

    #: What a group has not committed yet stays, whatever its age.
    wait_for_groups: bool = False
    #: Delayed messages where they waited, counted from their deliver time.
    delayed_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Retried messages.
    retry_ms: int = _between(RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Dead letters.
    dead_ms: int = _between(10 * RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX)
    #: Records of the queue's own logs, after the merge job has them in its tables.
    system_ms: int = _between(3_600_000, 60_000, RETENTION_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """The Spark application that runs the jobs, and Spark sessions of users on one machine."""

    #: Ignored where a session exists already (Databricks, Spark Connect).
    master: str = "local[*]"
    #: Memory of the driver, in Spark's notation.
    driver_memory: str = "2g"
    #: Tasks after a shuffle: more only pays on a cluster.
    shuffle_partitions: int = _between(2, 1, 100_000)
    #: Tasks that rebuild a Delta table's state: Delta's 50 doubles the time of a small MERGE.
    snapshot_partitions: int = _between(2, 1, 100_000)
    #: The Spark UI's port is only opened when asked for.
    ui: bool = False
    #: How often records are merged into the state tables.
    merge_every_ms: int = _between(2_000, 100, 3_600_000)
    #: How often messages are looked for that nobody acknowledged in time.
    revive_every_ms: int = _between(250, 50, 3_600_000)
    #: How often delayed messages are looked for that are due.
    delay_every_ms: int = _between(250, 50, 3_600_000)
    #: How often messages are removed whose time has passed.
    retain_every_s: int = _between(60, 1, 31_536_000)
    #: How often `verify` checks every partition.
    verify_every_s: int = _between(3_600, 1, 31_536_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How the demo, jobs and notebooks reach a service."""

    #: The service.
    url: str = "http://127.0.0.1:8080"
    #: Sent as `Authorization: Bearer ...` when not empty.
    token: Secret = field(default_factory=Secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All sections."""

    warehouse: WarehouseSettings = field(default_factory=WarehouseSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    log: LogSettings = field(default_factory=LogSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    jobs: JobsSettings = field(default_factory=JobsSettings)
    client: ClientSettings = field(default_factory=ClientSettings)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and where it came from, for the error message."""

    value: Value
    source: str


def load(
    profile: str | None = None,
    overrides: Mapping[str, Value] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Return the settings of a profile.

    Parameters
    ----------
    profile
        The name of a file `<profile>.toml` in the conf folder; by default DELTAMQ_PROFILE, else `local`.
    overrides
        Flags by dotted key (`"service.port"`); None means that the flag was not given.
    environ
        By default the process's environment.
    folder
        By default `conf_folder()`.
    """
    environ = os.environ if environ is None else environ
    profile = profile or environ.get("DELTAMQ_PROFILE") or "local"
    given = _from_file(profile, folder or conf_folder(environ))
    given.update(_from_environment(environ))
    given.update(_from_flags(overrides or {}))
    sections = get_type_hints(Config)
    return Config(**{name: _section(name, kind, given) for name, kind in sections.items()})


def conf_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder of the profiles: DELTAMQ_CONF, the repository's, or the installed one."""
    named = (os.environ if environ is None else environ).get("DELTAMQ_CONF")
    if named:
        return Path(named)
    candidates = (Path(__file__).resolve().parent.parent / "conf", Path(sys.prefix) / "share" / "deltamq" / "conf")
    return next((found for found in candidates if (found / "local.toml").is_file()), None)


def describe(config: Config) -> str:
    """Return one line `section.key = value` for each setting, secrets hidden."""
    lines = []
    for section, key in _keys():
        value = getattr(getattr(config, section), key)
        lines.append(f"{section}.{key} = {_shown(value)}")
    return "\n".join(lines)


def _shown(value: Value | Secret) -> str:
    if isinstance(value, Secret):
        return '"***"' if value else '""'
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _keys() -> Iterator[tuple[str, str]]:
    for section, kind in get_type_hints(Config).items():
        yield from ((section, setting.name) for setting in fields(kind))


def _from_file(profile: str, folder: Path | None) -> dict[str, _Given]:
    if folder is None:
        if profile == "local":
            return {}
        raise ConfigInvalid(f"profile {profile!r}: no conf folder found; name it in DELTAMQ_CONF", field="profile")
    path = folder / f"{profile}.toml"
    if not path.is_file() or path.parent != folder:
        known = ", ".join(sorted(found.stem for found in folder.glob("*.toml"))) or "none"
        raise ConfigInvalid(f"there is no {path}; profiles here: {known}", field="profile")
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is not TOML: {error}", field="profile") from error
    return _flatten(read, path)


def _flatten(read: Mapping[str, Any], path: Path) -> dict[str, _Given]:
    given = {}
    for section, values in read.items():
        if not isinstance(values, dict):
            raise _unknown(section, str(path))
        for key, value in values.items():
            given[_known(f"{section}.{key}", str(path))] = _Given(value, str(path))
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    names = {f"{ENV_PREFIX}{section}_{key}".upper(): f"{section}.{key}" for section, key in _keys()}
    given = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in ENV_OTHER:
            continue
        if name not in names:
            close = difflib.get_close_matches(name, [*names, *ENV_OTHER], n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ConfigInvalid(f"environment variable {name} names no setting{meant} Unset it.", field=name)
        given[names[name]] = _Given(text, f"environment variable {name}")
    return given


def _from_flags(overrides: Mapping[str, Value]) -> dict[str, _Given]:
    return {
        _known(key, "flags"): _Given(value, f"flag for {key}") for key, value in overrides.items() if value is not None
    }


def _known(key: str, source: str) -> str:
    if tuple(key.split(".", 1)) not in set(_keys()):
        raise _unknown(key, source)
    return key


def _unknown(key: str, source: str) -> ConfigInvalid:
    known = [f"{section}.{name}" for section, name in _keys()]
    close = difflib.get_close_matches(key, known, n=1)
    meant = f"did you mean {close[0]}?" if close else "conf/local.toml shows all settings"
    return ConfigInvalid(f"{source}: unknown setting {key!r}; {meant}", field=key)


def _section(name: str, kind: Any, given: Mapping[str, _Given]) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for setting in fields(kind):
        key = f"{name}.{setting.name}"
        if key in given:
            values[setting.name] = _converted(key, hints[setting.name], given[key])
            _check_bounds(key, values[setting.name], setting.metadata, given[key].source)
    try:
        return kind(**values)
    except (ValueError, DeltaMQError) as error:
        sources = sorted({given[f"{name}.{key}"].source for key in values})
        raise ConfigInvalid(f"{error} (set in {', '.join(sources)})", field=str(error).split(" ", 1)[0]) from error


def _converted(key: str, kind: Any, given: _Given) -> Any:
    """Return the value as the type that the setting has; text from the environment or a flag is parsed."""
    value = given.value
    try:
        if kind is bool:
            return _as_bool(value)
        if kind in (int, float):
            return _as_number(value, kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return value if isinstance(value, kind) else kind(value)
        if get_origin(kind) is tuple:
            return _as_texts(value)
        return kind(_as_text(value))
    except (TypeError, ValueError) as error:
        told = "***" if kind is Secret else repr(value)
        raise ConfigInvalid(f"{given.source}: {key} must be {_wanted(kind)}, not {told}", field=key) from error


def _as_bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    text = _as_text(value).lower()
    if text not in TRUE | FALSE:
        raise ValueError(text)
    return text in TRUE


def _as_number(value: Value, kind: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(value)
    number = kind(value.replace("_", "") if isinstance(value, str) else value)
    if number != value and not isinstance(value, str):
        raise ValueError(value)  # 1.5 for a whole number
    return number


def _as_texts(value: Value) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple):
        raise TypeError(value)
    return tuple(_as_text(item) for item in value)


def _as_text(value: Value) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _wanted(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in kind)
    if get_args(kind):
        return 'a list of texts (in the environment: "a,b")'
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "a text")


def _check_bounds(key: str, value: Any, bounds: Mapping[str, Any], source: str) -> None:
    if "low" in bounds and not bounds["low"] <= value <= bounds["high"]:
        raise ConfigInvalid(
            f"{source}: {key} is {value}; it must be from {bounds['low']} to {bounds['high']}", field=key
        )


assert all(
    setting.default is not MISSING or setting.default_factory is not MISSING
    for section in get_type_hints(Config).values()
    for setting in fields(section)
), "every setting has a default"

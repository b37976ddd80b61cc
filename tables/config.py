"""All settings, from four sources, in one frozen object; a later source wins:

    defaults of the sections  <  conf/<profile>.toml  <  DELTAMQ_<SECTION>_<KEY>  <  flags

An unknown key, a value of the wrong type and a value out of range are errors, which name the key, where it was set, and
the remedy. `conf/local.toml` shows every setting with its default, and a test compares the two, so an installation
without the file behaves the same. Secrets are hidden in `repr` and in `describe`.
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
from tables.config_sections import (
    ClientSettings,
    JobsSettings,
    QueueSettings,
    RetentionSettings,
    Secret,
    ServiceSettings,
    WarehouseSettings,
)
from tables.settings import LogSettings

__all__ = [
    "Config",
    "ConfigInvalid",
    "conf_folder",
    "describe",
    "load",
]

Value: TypeAlias = str | int | float | bool | list[str] | tuple[str, ...] | enum.Enum | None

ENV_PREFIX: Final = "DELTAMQ_"
#: Environment variables that are not settings: they say where the profiles, the jars and the service are.
ENV_OTHER: Final = frozenset({"DELTAMQ_CONF", "DELTAMQ_JARS", "DELTAMQ_PROFILE", "DELTAMQ_URL"})
TRUE, FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


class ConfigInvalid(Refused):
    """A setting is unknown, of the wrong type, or out of range."""

    code = "config_invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, by section."""

    warehouse: WarehouseSettings = field(default_factory=WarehouseSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    log: LogSettings = field(default_factory=LogSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    jobs: JobsSettings = field(default_factory=JobsSettings)
    client: ClientSettings = field(default_factory=ClientSettings)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and its source, for error messages."""

    value: Value
    source: str


def load(
    profile: str | None = None,
    overrides: Mapping[str, Value] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Return the settings of a profile, with those of the environment and the flags.

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
    """Return the folder of the profiles: DELTAMQ_CONF, else the repository's, else the installed one; None if none."""
    named = (os.environ if environ is None else environ).get("DELTAMQ_CONF")
    if named:
        return Path(named)
    here = Path(__file__).resolve()
    # an installation has them under its prefix: this Python's, or a folder of libraries (pip --prefix, --target)
    installed = (Path(sys.prefix), *here.parents[1:2], *here.parents[4:5])
    candidates = (here.parents[1] / "conf", *(prefix / "share" / "deltamq" / "conf" for prefix in installed))
    return next((found for found in candidates if (found / "local.toml").is_file()), None)


def describe(config: Config) -> str:
    """Return one line `section.key = value` for each setting, with secrets hidden."""
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
        raise ConfigInvalid(f"profile {profile!r}: no conf folder found; set DELTAMQ_CONF to it", field="profile")
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
            meant = f"; did you mean {close[0]}?" if close else "."
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
    """Return the value in the setting's type; text from the environment or a flag is parsed."""
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

"""All settings, from four sources, in one frozen object; a later source wins:

    defaults of the sections  <  conf/<profile>.toml  <  DELTAMQ_<SECTION>_<KEY>  <  flags

An unknown key, a value of the wrong type and a value out of range are errors, which name the key, where it was set, and
the remedy. `conf/local.toml` shows every setting with its default, and a test compares the two, so an installation
without the file behaves the same. Secrets are hidden in `repr` and in what is shown.
"""

from __future__ import annotations

import difflib
import enum
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, get_type_hints

import msgspec
from msgspec.inspect import BoolType, EnumType, IntType, Type, VarTupleType, type_info

from deltamq.mq.errors import Refused
from deltamq.mq.wire.cluster import SettingInfo, SettingList
from deltamq.tables.config_sections import (
    ClientSettings,
    JobsSettings,
    QueueSettings,
    RetentionSettings,
    Secret,
    ServiceSettings,
    WarehouseSettings,
)
from deltamq.tables.oidc_settings import OidcSettings
from deltamq.tables.settings import LogSettings, SettingsDisagree

Value: TypeAlias = str | int | float | bool | list[str] | tuple[str, ...] | enum.Enum | None

ENV_PREFIX: Final = "DELTAMQ_"
#: Environment variables that are not settings: where the profiles, the jars and the service are, and tests' faults.
ENV_OTHER: Final = frozenset(
    {
        "DELTAMQ_CONF",
        "DELTAMQ_FAILPOINTS",
        "DELTAMQ_FAILPOINTS_ONCE",
        "DELTAMQ_JARS",
        "DELTAMQ_PROFILE",
        "DELTAMQ_URL",
    }
)
#: What a text may say instead of true and false, in any case.
_FLAGS: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class ConfigInvalid(Refused):
    """A setting is unknown, of the wrong type, or out of range."""

    code = "config_invalid"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, by section."""

    warehouse: WarehouseSettings = msgspec.field(default_factory=WarehouseSettings)
    service: ServiceSettings = msgspec.field(default_factory=ServiceSettings)
    oidc: OidcSettings = msgspec.field(default_factory=OidcSettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)
    queue: QueueSettings = msgspec.field(default_factory=QueueSettings)
    retention: RetentionSettings = msgspec.field(default_factory=RetentionSettings)
    jobs: JobsSettings = msgspec.field(default_factory=JobsSettings)
    client: ClientSettings = msgspec.field(default_factory=ClientSettings)
    #: Where each given setting comes from, by dotted key: a file, a variable, or a flag.
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)


_SECTIONS: Final[dict[str, Any]] = {name: hint for name, hint in get_type_hints(Config).items() if name != "sources"}
#: The type of each setting, with its bounds, by dotted key.
_TYPES: Final[dict[str, Any]] = {
    f"{section}.{name}": hint
    for section, kind in _SECTIONS.items()
    for name, hint in get_type_hints(kind, include_extras=True).items()
}
_ENV_NAMES: Final = {f"{ENV_PREFIX}{key.replace('.', '_')}".upper(): key for key in _TYPES}


class _Given(msgspec.Struct, frozen=True):
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
    """Load the settings of a profile; the environment and the flags override them.

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
    flags = {key: value for key, value in (overrides or {}).items() if value is not None}
    given.update({key: _Given(value, f"flag for {key}") for key, value in flags.items()})
    for key in given:
        if key not in _TYPES:
            raise _unknown(key, given[key].source)
    sections = {name: _section(name, kind, given) for name, kind in _SECTIONS.items()}
    return Config(**sections, sources={key: one.source for key, one in given.items()})


def conf_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder of the profiles: DELTAMQ_CONF, else the repository's, else the installed one; None if none."""
    named = (os.environ if environ is None else environ).get("DELTAMQ_CONF")
    if named:
        return Path(named)
    here = Path(__file__).resolve()
    # an installation has them under its prefix: this Python's, or a folder of libraries (pip --prefix, --target)
    installed = (Path(sys.prefix), *here.parents[2:3], *here.parents[5:6])
    candidates = (here.parents[1] / "conf", *(prefix / "share" / "deltamq" / "conf" for prefix in installed))
    return next((candidate for candidate in candidates if (candidate / "local.toml").is_file()), None)


def settings_of(config: Config) -> SettingList:
    """Return every setting with its default and source; secrets are hidden, so all that is told of one is if it is set.

    A value that a profile gives as it is by default does not differ.
    """
    default = Config()
    return SettingList(settings=tuple(_setting(key, config, default) for key in _TYPES))


def _setting(key: str, config: Config, default: Config) -> SettingInfo:
    value, usual = attrgetter(key)(config), attrgetter(key)(default)
    return SettingInfo(
        name=key,
        value=msgspec.to_builtins(value, enc_hook=_hidden),
        default=msgspec.to_builtins(usual, enc_hook=_hidden),
        source=config.sources.get(key, "default"),
        differs=value != usual,
    )


def _hidden(value: Secret) -> str:
    return "***" if value else ""


def _from_file(profile: str, folder: Path | None) -> dict[str, _Given]:
    if folder is None:
        if profile == "local":
            return {}
        raise ConfigInvalid(f"profile {profile!r}: no conf folder found; set DELTAMQ_CONF to it", field="profile")
    path = folder / f"{profile}.toml"
    if not path.is_file() or path.parent != folder:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml"))) or "none"
        raise ConfigInvalid(f"there is no {path}; profiles here: {known}", field="profile")
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is not TOML: {error}", field="profile") from error
    return {key: _Given(value, str(path)) for key, value in _flatten(read)}


def _flatten(read: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for section, values in read.items():
        if isinstance(values, dict):
            yield from ((f"{section}.{key}", value) for key, value in values.items())
        else:
            yield section, values


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in ENV_OTHER:
            continue
        if name not in _ENV_NAMES:
            close = difflib.get_close_matches(name, [*_ENV_NAMES, *ENV_OTHER], n=1)
            meant = f"; did you mean {close[0]}?" if close else "."
            raise ConfigInvalid(f"environment variable {name} names no setting{meant} Unset it.", field=name)
        given[_ENV_NAMES[name]] = _Given(text, f"environment variable {name}")
    return given


def _unknown(key: str, source: str) -> ConfigInvalid:
    close = difflib.get_close_matches(key, _TYPES, n=1)
    meant = f"did you mean {close[0]}?" if close else "conf/local.toml shows all settings"
    return ConfigInvalid(f"{source}: unknown setting {key!r}; {meant}", field=key)


def _section(name: str, kind: Callable[..., Any], given: Mapping[str, _Given]) -> Any:
    values = {key: _converted(key, given[key]) for key in _TYPES if key in given and key.startswith(f"{name}.")}
    try:
        return kind(**{key.removeprefix(f"{name}."): value for key, value in values.items()})
    except SettingsDisagree as error:
        sources = sorted({given[key].source for key in error.keys if key in given})
        raise ConfigInvalid(f"{error} (set in {', '.join(sources)})", field=error.keys[0]) from error


def _converted(key: str, given: _Given) -> Any:
    hint, kind = _TYPES[key], type_info(_TYPES[key])
    value = _parsed(given.value, kind) if isinstance(given.value, str) else given.value
    try:
        return msgspec.convert(value, hint, strict=False, dec_hook=_secret)
    except msgspec.ValidationError:
        shown = "***" if hint is Secret else repr(given.value)
    # outside of the handler: its error shows the value, which may be a secret
    raise ConfigInvalid(f"{given.source}: {key} must be {_wanted(kind)}, not {shown}", field=key)


def _parsed(text: str, kind: Type) -> str | list[str]:
    """Return text as msgspec reads it: `on` as `true`, `1_000` as `1000`, and `a, b` as a list."""
    match kind:
        case BoolType():
            return _FLAGS.get(text.lower(), text)
        case IntType():
            return text.strip().replace("_", "")
        case VarTupleType():
            return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _secret(kind: type, value: object) -> Secret:
    if not isinstance(value, str):
        raise TypeError(kind)
    return Secret(value)


def _wanted(kind: Type) -> str:
    match kind:
        case BoolType():
            return "true or false"
        case IntType(ge=low, le=None):
            return f"a whole number, at least {low}"
        case IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case EnumType(cls=choices):
            return "one of " + ", ".join(repr(choice.value) for choice in choices)
        case VarTupleType():
            return 'a list of texts (in the environment: "a,b")'
    return "a text"

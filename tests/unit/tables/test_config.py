"""Settings: where they come from, what wins, and what is refused."""

from __future__ import annotations

import enum
import tomllib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from deltamq.mq.limits import RETENTION_MS_MAX
from deltamq.tables.config import Config, ConfigInvalid, conf_folder, load, settings_of
from deltamq.tables.config_sections import Secret
from deltamq.tables.settings import Flush, LogSettings

CONF = Path(__file__).parents[3] / "conf"


def _shown(config: Config) -> dict[str, dict[str, object]]:
    """Return the settings as TOML would hold them."""

    def plain(value: object) -> object:
        if isinstance(value, Secret):
            return value.reveal()
        if isinstance(value, enum.Enum):
            return value.value
        return list(value) if isinstance(value, tuple) else value

    return {
        section.name: {
            setting.name: plain(getattr(getattr(config, section.name), setting.name))
            for setting in msgspec.structs.fields(getattr(config, section.name))
        }
        for section in msgspec.structs.fields(config)
        if section.name != "sources"
    }


def _profile(folder: Path, text: str) -> Path:
    (folder / "local.toml").write_text(text, encoding="utf-8")
    return folder


def test_local_profile_shows_every_setting_with_its_default() -> None:
    assert tomllib.loads((CONF / "local.toml").read_text(encoding="utf-8")) == _shown(Config())


def test_every_setting_of_the_local_profile_has_a_comment() -> None:
    lines = (CONF / "local.toml").read_text(encoding="utf-8").splitlines()
    bare = [line for before, line in pairwise(lines) if "=" in line and not before.startswith("#")]
    assert [line for line in bare if not line.startswith("#")] == []


#: The other file there has the prices of object stores.
_PROFILES = [path.stem for path in sorted(CONF.glob("*.toml")) if path.stem != "prices"]


@pytest.mark.parametrize("profile", _PROFILES)
def test_shipped_profiles_load(profile: str) -> None:
    assert isinstance(load(profile, environ={}), Config)


@pytest.mark.parametrize("profile", [name for name in _PROFILES if name != "local"])
def test_other_profiles_hold_only_what_differs(profile: str) -> None:
    read = tomllib.loads((CONF / f"{profile}.toml").read_text(encoding="utf-8"))
    defaults = _shown(Config())
    same = [f"{s}.{k}" for s, values in read.items() for k, value in values.items() if defaults[s][k] == value]
    assert same == []


def test_flags_win_over_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    folder = _profile(tmp_path, '[service]\nport = 1\nhost = "file"\n[warehouse]\nuri = "file"\n')
    environ = {"DELTAMQ_SERVICE_PORT": "2", "DELTAMQ_SERVICE_HOST": "environment"}
    config = load(overrides={"service.port": 3, "service.host": None}, environ=environ, folder=folder)
    assert (config.service.port, config.service.host, config.warehouse.uri) == (3, "environment", "file")


def test_without_a_conf_folder_the_defaults_are_those_of_the_local_profile(tmp_path: Path) -> None:
    defaults = load(environ={"DELTAMQ_CONF": str(_profile(tmp_path, ""))})
    assert defaults == replace(load("local", environ={}, folder=CONF), sources={})


def test_the_profile_and_its_folder_may_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[service]\nport = 7\n", encoding="utf-8")
    assert load(environ={"DELTAMQ_CONF": str(tmp_path), "DELTAMQ_PROFILE": "mine"}).service.port == 7


def test_environment_variables_that_are_no_settings_are_let_be() -> None:
    others = {
        "DELTAMQ_FAILPOINTS": "",
        "DELTAMQ_FAILPOINTS_ONCE": "/tmp",
        "DELTAMQ_JARS": "/",
        "DELTAMQ_URL": "http://x",
    }
    assert load(environ=others) == load(environ={})
    with pytest.raises(ConfigInvalid, match=r"DELTAMQ_FAILPOINT names no setting; did you mean DELTAMQ_FAILPOINTS\?"):
        load(environ={"DELTAMQ_FAILPOINT": "ack.before_respond=kill"})


def test_the_repository_and_an_installation_have_a_conf_folder() -> None:
    assert conf_folder({}) == CONF


def test_environment_is_parsed_by_the_type_of_the_setting() -> None:
    environ = {
        "DELTAMQ_SERVICE_BROKERS": "a, b",
        "DELTAMQ_SERVICE_AUTO_CREATE_TOPICS": "off",
        "DELTAMQ_LOG_FLUSH": "async",
        "DELTAMQ_LOG_TAIL_BYTES_MAX": "1_000_000",
    }
    config = load(environ=environ)
    assert config.service.brokers == ("a", "b")
    assert config.service.auto_create_topics is False
    assert config.log.flush is Flush.ASYNC
    assert config.log.tail_bytes_max == 1_000_000


WRONG = {
    "unknown key in the file": ("[service]\nprot = 1", {}, "service.prot", "service.port"),
    "unknown section in the file": ("[servise]\nport = 1", {}, "servise.port", "service.port"),
    "key outside of a section": ("port = 1", {}, "port", "conf/local.toml shows all"),
    "unknown environment variable": ("", {"DELTAMQ_SERVICE_PROT": "1"}, "DELTAMQ_SERVICE_PROT", "DELTAMQ_SERVICE_PORT"),
    "text for a number": ('[service]\nport = "x"', {}, "service.port", "a whole number"),
    "fraction for a whole number": ("[service]\nport = 1.5", {}, "service.port", "a whole number"),
    "true for a number": ("[service]\nport = true", {}, "service.port", "a whole number"),
    "number for a text": ("[service]\nhost = 1", {}, "service.host", "a text"),
    "text for true or false": (
        "",
        {"DELTAMQ_SERVICE_AUTO_CREATE_TOPICS": "maybe"},
        "auto_create_topics",
        "true or false",
    ),
    "unknown choice": ('[log]\nflush = "later"', {}, "log.flush", "'sync', 'async'"),
    "too large": ("[service]\nport = 65536", {}, "service.port", "from 0 to 65535"),
    "too small": ("", {"DELTAMQ_JOBS_VERIFY_EVERY_S": "0"}, "jobs.verify_every_s", "from 1 to"),
    "refused by the log": ("[log]\nrollup_files = 1", {}, "log.rollup_files", "at least 2"),
    "a broker twice": ('[service]\nbrokers = ["a", "a"]', {}, "service.brokers", "none twice"),
    "not TOML": ("[service", {}, "TOML", "local.toml"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_by_name_and_with_the_remedy(name: str, tmp_path: Path) -> None:
    text, environ, key, remedy = WRONG[name]
    with pytest.raises(ConfigInvalid) as caught:
        load(environ=environ, folder=_profile(tmp_path, text))
    assert key in str(caught.value)
    assert remedy in str(caught.value)


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match=r"service\.prot.*service\.port"):
        load(overrides={"service.prot": 1}, environ={})


def test_an_unknown_profile_names_those_that_are_there() -> None:
    with pytest.raises(ConfigInvalid, match="cluster, databricks, local"):
        load("lokal", environ={})


@pytest.mark.parametrize("profile", ["../local", "/etc/passwd"])
def test_a_profile_cannot_leave_its_folder(profile: str) -> None:
    with pytest.raises(ConfigInvalid):
        load(profile, environ={}, folder=CONF)


def test_secrets_show_nowhere() -> None:
    config = load(environ={"DELTAMQ_CLIENT_TOKEN": "hunter2"})
    assert config.client.token.reveal() == "hunter2"
    assert "hunter2" not in repr(config) + str(settings_of(config)) + str(config.client.token)
    with pytest.raises(ConfigInvalid) as caught:
        load(overrides={"client.token": 5}, environ={})
    assert "5" not in str(caught.value)


def test_settings_of_shows_every_setting_with_its_source_and_whether_it_differs() -> None:
    config = load(environ={"DELTAMQ_SERVICE_PORT": "8081", "DELTAMQ_CLIENT_TOKEN": "hunter2"})
    shown = {one.name: one for one in settings_of(config).settings}
    sections = (getattr(config, one.name) for one in msgspec.structs.fields(config) if one.name != "sources")
    assert len(shown) == sum(len(msgspec.structs.fields(section)) for section in sections)
    port = shown["service.port"]
    assert (port.value, port.default, port.source, port.differs) == (
        8081,
        8080,
        "environment variable DELTAMQ_SERVICE_PORT",
        True,
    )
    assert shown["service.brokers"].value == ("broker-a", "broker-b") and not shown["service.brokers"].differs
    assert shown["service.brokers"].source.endswith("local.toml")
    assert (shown["client.token"].value, shown["client.token"].default) == ("***", "")
    assert {name for name, one in shown.items() if one.differs} == {"service.port", "client.token"}


def _refused(key: str, value: object) -> ConfigInvalid:
    with pytest.raises(ConfigInvalid) as caught:
        load(overrides={key: value}, environ={})
    assert caught.value.field == key
    return caught.value


LOG_EDGES = {
    "flush_interval_ms": (1, 60_000),
    "tail_bytes_max": (65_536, 1 << 40),
    "tails_bytes_max": (65_536, 1 << 40),
    "cache_bytes_max": (1, 1 << 40),
    "rollup_files": (2, None),
    "rollup_bytes_max": (1, 268_435_456),
    "checkpoint_commits": (1, 10_000),
    "log_keep_ms": (1_000, RETENTION_MS_MAX),
    "file_keep_ms": (1, RETENTION_MS_MAX),
    "orphan_keep_ms": (60_000, RETENTION_MS_MAX),
    "row_group_rows": (1_024, 1_048_576),
}


def test_every_number_of_the_log_has_edges() -> None:
    numbers = {name for name, value in msgspec.structs.asdict(LogSettings()).items() if isinstance(value, int)}
    assert set(LOG_EDGES) == numbers


@pytest.mark.parametrize("name", LOG_EDGES)
def test_numbers_of_the_log_are_taken_up_to_their_edges_and_not_beyond(name: str) -> None:
    apart = {"log.tail_bytes_max": 65_536, "log.tails_bytes_max": 1 << 40}
    for edge, beyond in zip(LOG_EDGES[name], (-1, 1), strict=True):
        if edge is not None:
            assert getattr(load(overrides={**apart, f"log.{name}": edge}, environ={}).log, name) == edge
            _refused(f"log.{name}", edge + beyond)


def test_a_wrong_name_of_a_cluster_is_refused_under_its_key() -> None:
    assert "must be 1 to 127 characters" in str(_refused("warehouse.cluster", "a/b"))


def test_settings_that_disagree_are_refused_with_the_sources_of_these_alone(tmp_path: Path) -> None:
    folder = _profile(tmp_path, "[service]\nport = 1\n")
    environ = {"DELTAMQ_SERVICE_LEASE_RENEW_MS": "9_000", "DELTAMQ_SERVICE_HOST": "here"}
    with pytest.raises(ConfigInvalid) as caught:
        load(environ=environ, folder=folder)
    assert caught.value.field == "service.lease_ms"
    assert str(caught.value).endswith("(set in environment variable DELTAMQ_SERVICE_LEASE_RENEW_MS)")


@pytest.mark.parametrize(("text", "meant"), [("yes", True), ("ON", True), ("1", True), ("No", False), ("false", False)])
def test_a_flag_is_set_by_any_usual_word(text: str, meant: bool) -> None:
    assert load(environ={"DELTAMQ_JOBS_UI": text}).jobs.ui is meant


def test_a_wrong_secret_is_not_in_the_error_nor_in_what_caused_it() -> None:
    error = _refused("client.token", 5309)
    assert "5309" not in repr([error, error.__cause__, error.__context__])

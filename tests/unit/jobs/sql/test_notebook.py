"""Settings of a notebook: widgets where there are any, else profile and environment."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deltamq.jobs.sql.notebook import notebook_conf


class Widgets:
    """What Databricks gives a notebook: text fields that keep what was typed."""

    def __init__(self, **typed: str) -> None:
        self.values = dict(typed)
        self.labels: dict[str, str] = {}

    def text(self, name: str, default: str, label: str) -> None:
        self.values.setdefault(name, default)
        self.labels[name] = label

    def get(self, name: str) -> str:
        return self.values[name]


def test_spark_05_without_widgets_profile_and_environment_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMQ_CLIENT_URL", "http://here:1")
    conf = notebook_conf()
    assert (conf.client.url, conf.warehouse.uri) == ("http://here:1", "warehouse")


def test_spark_05_what_is_typed_into_a_widget_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMQ_WAREHOUSE_URI", "s3://other/one")
    widgets = Widgets(warehouse=" s3://bucket/deltamq ", profile="databricks")
    conf = notebook_conf(SimpleNamespace(widgets=widgets))
    assert conf.warehouse.uri == "s3://bucket/deltamq"
    assert conf.log.file_keep_ms == 3_600_000, "the profile's"
    assert conf.client.url == "http://127.0.0.1:8080", "the widget was left empty"
    assert sorted(widgets.labels) == ["profile", "service", "warehouse"]

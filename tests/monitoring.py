"""The files of conf/monitoring as tests read them: rules, panels, and the metrics that a query names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

__all__ = ["FOLDER", "Panel", "alerts", "metrics_in", "panels"]

FOLDER: Final = Path(__file__).parents[1] / "conf" / "monitoring"

#: What holds no metric: texts, label matchers and ranges, lists of labels, numbers with units.
_NOT_METRICS: Final = re.compile(
    r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\b\d[\w.]*'
)
_WORD: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w*\s*\()")
_OPERATORS: Final = {"and", "or", "unless", "offset", "bool"}


class Panel(NamedTuple):
    """One query of a panel."""

    title: str
    query: str


def alerts() -> dict[str, Any]:
    """Return the rules by the names of their alerts."""
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels() -> Sequence[Panel]:
    """Return the queries of the dashboard."""
    dashboard = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    return list(_queries(dashboard))


def _queries(dashboard: Any) -> Iterator[Panel]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Panel(panel["title"], target["expr"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Panel(f"${variable['name']}", variable["definition"].split("(")[1].split(",")[0])


def metrics_in(query: str) -> set[str]:
    """Return the names of the metrics in a query: the words that are neither functions, operators nor labels."""
    return set(_WORD.findall(_NOT_METRICS.sub(" ", query))) - _OPERATORS

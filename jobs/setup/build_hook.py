"""What hatchling asks while it builds the wheel: where the file goes that holds the names which users import."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FaceHook(BuildHookInterface[Any]):
    """Makes `mq/client/deltamq.py` the `deltamq/__init__.py` of a wheel; in a checkout, a link does that."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, but to a development install (`version` is "editable")."""
        if version != "editable":
            build_data["force_include"]["mq/client/deltamq.py"] = "deltamq/__init__.py"

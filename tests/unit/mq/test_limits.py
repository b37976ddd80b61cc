"""Limits that users see: the figures of the specification."""

from __future__ import annotations

import ast
from pathlib import Path

from deltamq.mq import limits


def test_model_5_and_route_4_and_send_6_figures() -> None:
    assert limits.NAME_LENGTH_MAX == 127
    assert limits.GROUP_LENGTH_MAX == 255
    assert limits.LOGICAL_PARTITIONS == limits.PARTITIONS_MAX == 1024
    assert limits.MESSAGE_BYTES_MAX == 4 * 1024 * 1024


def test_retry_4_a_message_waits_up_to_forty_days() -> None:
    assert limits.DELAY_MS_MAX == 40 * 24 * 3600 * 1000


def test_retry_6_messages_live_three_days_by_default() -> None:
    assert limits.RETENTION_MS_DEFAULT == 3 * 24 * 3600 * 1000
    assert limits.RETENTION_MS_MIN < limits.RETENTION_MS_DEFAULT < limits.RETENTION_MS_MAX


def test_every_limit_is_a_positive_final_number_and_relations_are_asserted() -> None:
    module = ast.parse(Path(limits.__file__).read_text(encoding="utf-8"))
    named = [node for node in module.body if isinstance(node, ast.AnnAssign)]
    assert not [node for node in module.body if isinstance(node, ast.Assign)], "declare limits as Final"
    for node in named:
        assert isinstance(node.target, ast.Name)
        value = getattr(limits, node.target.id)
        assert value > 0 or node.target.id.endswith("_MIN")
    assert any(isinstance(node, ast.Assert) for node in module.body)

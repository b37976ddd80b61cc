"""What the audit says became of an act, and what it shows of its effect (SPEC SEC-40)."""

from __future__ import annotations

import json

import pytest

from deltamq.mq.audit import MetadataChange, bounded, outcome_of, states_of
from deltamq.mq.auth.changes import decide_first_administrator, decide_put_principal
from deltamq.mq.auth.keys import new_key
from deltamq.mq.limits import SHOWN_BYTES_MAX
from deltamq.mq.meta.fold import Meta


@pytest.mark.parametrize(
    ("status", "changed", "is_unsure", "outcome"),
    [
        (200, True, False, "done"),
        (204, False, False, "done"),
        (404, False, False, "refused"),
        (409, True, False, "unknown"),
        (500, False, False, "failed"),
        (503, False, True, "unknown"),
        (500, True, False, "unknown"),
    ],
)
def test_sec_40_an_outcome_claims_no_more_than_is_known(
    status: int, changed: bool, is_unsure: bool, outcome: str
) -> None:
    assert outcome_of(status, changed=changed, is_unsure=is_unsure) == outcome


def test_sec_40_a_key_is_shown_without_its_digest() -> None:
    key, token = new_key("ada", b"i" * 8, b"s" * 32, 5)
    change = MetadataChange(Meta(), decide_first_administrator(Meta().auth, key))
    before, after = states_of([change])
    assert json.loads(before) == {"auth/ada": None}
    assert json.loads(after)["auth/ada"]["keys"] == [{"id": key.id, "created_ms": 5, "until_ms": None}]
    assert key.digest not in after and token not in after


def test_sec_40_several_changes_are_shown_from_the_first_to_the_last() -> None:
    one = MetadataChange(Meta(), decide_put_principal(Meta().auth, "ada", "a", 5))
    two = MetadataChange(one.after, decide_put_principal(one.after.auth, "ada", "b", 6))
    before, after = states_of([one, two])
    assert (json.loads(before)["auth/ada"], json.loads(after)["auth/ada"]["note"]) == (None, "b")
    assert states_of([]) == ("", "")


def test_sec_40_what_is_large_is_shown_as_its_size() -> None:
    assert json.loads(bounded({"a": 1})) == {"a": 1}
    large = {"routes": "x" * SHOWN_BYTES_MAX}
    assert json.loads(bounded(large)) == {"(bytes)": SHOWN_BYTES_MAX + 13, "(names)": ["routes"]}

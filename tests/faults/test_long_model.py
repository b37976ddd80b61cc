"""The log against a plain list, for a hundred thousand steps (SPEC MODEL-3); `make test` plays a few hundred."""

from __future__ import annotations

import pytest

from tests.unit.tables.log.test_model import run_log_machine


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_model_3_the_log_is_a_list_in_a_hundred_thousand_steps() -> None:
    run_log_machine(4_000)

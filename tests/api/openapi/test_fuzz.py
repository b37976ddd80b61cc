"""Whatever is sent along the API's own description: no 5xx, and no answer that it does not describe (fault F10)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltamq.api.app import create_app
from tests.api.running import config_for, running

#: What an answer has to stand up to; a request that the schema allows may still break a rule (409, 422).
CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
        "use_after_free",
    )
)


def test_every_reference_of_the_description_leads_somewhere(tmp_path: Path) -> None:
    text = json.dumps(create_app(config_for(tmp_path / "warehouse")).fastapi.openapi())
    parts = json.loads(text)["components"]
    there = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in parts[kind]}
    found = set(re.findall(r'"\$ref": "([^"]+)"', text))
    assert found and found <= there, found - there


#: The calls that close brokers and partitions: what they closed answers other calls with 503, as it should.
CLOSING = r"^/v1/(brokers/|topics/\{topic\}/partitions/\{partition\}$)"


#: All ways to make requests; those of "coverage", which are at the edge of each field, take half a minute of a core.
PHASES = "examples,coverage,fuzzing,stateful"
LONG = [pytest.mark.long, pytest.mark.timeout(3_600)]


@pytest.mark.parametrize(
    ("examples", "phases", "selection"),
    [
        pytest.param(1, "examples,fuzzing", "exclude", id="few"),
        pytest.param(2_000, PHASES, "exclude", marks=LONG, id="many"),
        pytest.param(2_000, PHASES, "include", marks=LONG, id="many that close"),
    ],
)
def test_no_answer_is_a_5xx_or_undocumented(tmp_path: Path, examples: int, phases: str, selection: str) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        found = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{api.port}/openapi.json"),
                *("--checks", CHECKS, "--max-examples", str(examples), "--seed", "7", "--no-color"),
                *("--phases", phases, "--generation-database", "none"),
                *(f"--{selection}-path-regex", CLOSING),
                # It makes topics of 1,024 partitions, whose removal takes seconds on a busy disk.
                *("--request-timeout", "60"),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert found.returncode == 0, found.stdout[-8_000:] + found.stderr[-2_000:]
        requests = api.service.metrics.requests
        is_through = requests["produce", 200] and requests["fetch", 200]
        assert is_through or selection == "include", "it got through to the stores"

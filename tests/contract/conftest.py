"""The S3 server of the contract tests, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import S3Server, ServerUnavailable, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 API server; without one the tests that need it are skipped and say why."""
    try:
        with s3_server(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except ServerUnavailable as error:
        pytest.skip(str(error))

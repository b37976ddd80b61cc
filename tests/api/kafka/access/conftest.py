"""The guarded services of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.guarded import guarded
from tests.api.kafka.access.callers import Door
from tests.certificates import Authority
from tests.free_ports import free_port


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Door]:
    port, pair = free_port(), authority.server()
    folder = tmp_path_factory.mktemp("guarded")
    with guarded(folder, ca=authority.ca, kafka_port=port, tls_cert=pair.cert, tls_key=pair.key) as admin:
        yield Door(admin, port, authority.ca)

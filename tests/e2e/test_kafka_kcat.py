"""kcat, as Debian has it, against a service (SPEC KAFKA-3, 4, 9)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq import Admin
from tests.e2e.service_process import ServiceProcess
from tests.free_ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")

_FORMAT = "%p %o %k %s %h\n"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    service = ServiceProcess(tmp_path / "warehouse", "--kafka-port", str(port))
    try:
        with Admin(service.url) as admin:
            admin.create_topic("orders", partitions=2)
        yield f"127.0.0.1:{port}"
    finally:
        service.close()


def _kcat(address: str, *arguments: str, lines: str = "") -> list[str]:
    done = subprocess.run(
        ["kcat", "-b", address, *arguments], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kafka_04_kcat_writes_and_reads_keys_values_and_headers(address) -> None:
    sent = {f"key{number}": f"value{number}" for number in range(50)}
    written = "".join(f"{key}:{value}\n" for key, value in sent.items())
    idempotent = ("-X", "enable.idempotence=true", "-z", "snappy")
    _kcat(address, "-t", "orders", "-P", "-K", ":", "-H", "from=kcat", *idempotent, lines=written)
    read = [
        line.split(" ") for line in _kcat(address, "-t", "orders", "-C", "-o", "beginning", "-e", "-q", "-f", _FORMAT)
    ]
    assert {key: value for _, _, key, value, _ in read} == sent
    assert {headers for *_, headers in read} == {"from=kcat"}
    assert len({(partition, offset) for partition, offset, *_ in read}) == len(sent)
    shown = "\n".join(_kcat(address, "-L", "-t", "orders"))
    assert 'topic "orders" with 2 partitions' in shown


def test_kafka_09_kcat_reads_in_a_group_which_goes_on_where_it_was(address) -> None:
    group = ("-G", "billing", "-X", "auto.offset.reset=earliest", "-q", "-c", "3", "orders")
    _kcat(address, "-t", "orders", "-P", "-p", "0", lines="a\nb\nc\nd\ne\nf\n")
    assert _kcat(address, *group) == ["a", "b", "c"]
    assert _kcat(address, *group) == ["d", "e", "f"]

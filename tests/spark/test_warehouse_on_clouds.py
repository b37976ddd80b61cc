"""A warehouse on Azure and on Google's store: Spark reads message tables there with Hadoop's connectors (SPEC RELY-16).

The jars come from Maven Central when a test first needs them, into `.tools/`; `make faults` runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER
from tests.object_servers import SERVERS, ObjectServer, running
from tests.queue_tables import QueueTables
from tests.s3_server import TOOLS, tools_lock
from tests.suites.cache import CannotRun, run, tool

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

_READ: Final = """
import json, sys
from deltamq.jobs.sql import spark_session
from deltamq.tables.config import load

uri, table, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = spark_session("clouds", conf=load(overrides={"warehouse.uri": uri}), **settings)
rows = {
    "delta": spark.read.format("delta").load(table).orderBy("offset").collect(),
    "mq": spark.read.format("mq").option("topic", "orders").load().orderBy("offset").collect(),
}
print(json.dumps({name: [bytes(row.body).decode() for row in found] for name, found in rows.items()}))
"""


def _azure(server: ObjectServer) -> dict[str, str]:
    """Return what the ABFS driver needs for Azurite, which has neither a host name for each account nor TLS."""
    options = server.reader_options()
    fs = "spark.hadoop.fs.azure"
    return {
        f"{fs}.abfs.endpoint": options["azure_storage_endpoint"].split("/")[2],
        f"{fs}.account.key": options["azure_storage_account_key"],
        f"{fs}.fns.account.service.type": "BLOB",
        f"{fs}.account.hns.enabled": "false",
        f"{fs}.always.use.https": "false",
        f"{fs}.ssl.channel.mode": "Default_JSSE",
        f"{fs}.networking.library": "JDK_HTTP_URL_CONNECTION",
    }


def _gcs(server: ObjectServer) -> dict[str, str]:
    """Return what Google's connector needs for a server without accounts, and sizes that Hadoop 3.5 words otherwise."""
    account = json.loads(Path(server.reader_options()["google_service_account"]).read_text())
    fs = "spark.hadoop.fs.gs"
    return {
        f"{fs}.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        f"{fs}.storage.root.url": account["gcs_base_url"],
        "spark.hadoop.google.cloud.auth.service.account.enable": "false",
        "spark.hadoop.google.cloud.auth.null.enable": "true",
        f"{fs}.project.id": "tests",
        f"{fs}.block.size": str(64 << 20),
        f"{fs}.outputstream.buffer.size": str(8 << 20),
        f"{fs}.outputstream.sync.min.interval": "0",
        f"{fs}.inputstream.min.range.request.size": str(2 << 20),
        f"{fs}.inputstream.inplace.seek.limit": str(8 << 20),
        f"{fs}.rewrite.max.chunk.size": str(512 << 20),
    }


class Connector(NamedTuple):
    """A connector's jar, the address of a warehouse as Hadoop names it, and the settings for the tests' server."""

    artifact: str
    sha256: str
    address: str
    settings: Callable[[ObjectServer], dict[str, str]]


_CONNECTORS: Final = {
    "azure": Connector(
        "org.apache.hadoop:hadoop-azure:3.5.0",
        "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        "abfs://warehouse@devstoreaccount1.dfs.core.windows.net/spark",
        _azure,
    ),
    "gcs": Connector(
        "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.28:jar:shaded",
        "bfadc7144b16e7b9ff2078abf745e69e010f4c16280474958f4cdaec83d826bf",
        "gs://warehouse/spark",
        _gcs,
    ),
}


def _jar(connector: Connector) -> Path:
    """Return the connector's jar, fetched if it is not there; skips without Maven."""
    folder = TOOLS / f"connector-{connector.sha256[:12]}"
    try:
        with tools_lock():
            if not folder.exists():
                copy = [tool("mvn", "Maven (Debian: apt-get install maven)"), "-B", "-q", "dependency:copy"]
                run([*copy, f"-Dartifact={connector.artifact}", f"-DoutputDirectory={folder}"], cwd=TOOLS)
    except CannotRun as error:
        pytest.skip(str(error))
    (jar,) = folder.glob("*.jar")
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == connector.sha256
    return jar


@pytest.mark.parametrize("name", _CONNECTORS)
def test_rely_16_spark_reads_a_warehouse_on_azure_and_on_googles_store(name: str, tmp_path: Path) -> None:
    connector = _CONNECTORS[name]
    jar = _jar(connector)
    with running(SERVERS[name], tmp_path) as server:
        made = QueueTables(server.uri("spark"), server.store("spark"))
        made.send(made.topic("orders"), "a", "b", "c")
        made.close()
        settings = {"spark.jars": str(jar), **connector.settings(server)}
        table = f"{connector.address}/topics/orders/orders@broker-a"
        read = subprocess.run(
            [sys.executable, "-c", _READ, connector.address, table, json.dumps(settings)],
            env={**os.environ, **server.environment()},
            cwd=PROJECT_FOLDER,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == {"delta": ["a", "b", "c"], "mq": ["a", "b", "c"]}

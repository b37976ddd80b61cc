"""Clients with Kerberos tickets of a real realm, against services as users start them (SPEC KAFKA-29)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service_process import DELTAMQ, ServiceProcess
from tests.free_ports import free_port
from tests.java import GENERATIONS, Java
from tests.kerberos import MISSING, Realm, the_realm

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"there is no KDC: {MISSING}")

SECRET = "0123456789abcdef" * 4


class Services:
    """Two processes of one warehouse that take tickets; `client` may do everything, and `eve` nothing."""

    def __init__(self, folder: Path, realm: Realm) -> None:
        self.realm = realm
        self.clients = realm.keytab("clients.keytab", "client/localhost", "eve/localhost")
        self._keytab = realm.keytab("service.keytab", "kafka/localhost")
        self._warehouse = folder / "warehouse"
        init = [*DELTAMQ, "auth", "init", "--warehouse", str(self._warehouse), "--principal", "client"]
        subprocess.run(init, check=True, capture_output=True)
        self._ports = [free_port(), free_port()]
        self.processes: list[ServiceProcess] = []
        self.start()

    @property
    def address(self) -> str:
        return ",".join(f"localhost:{port}" for port in self._ports)

    def start(self) -> None:
        """Start both, each with a broker of its own."""
        settings = {"AUTH": "true", "CLUSTER_SECRET": SECRET, "KAFKA_KERBEROS_KEYTAB": self._keytab}
        for port, broker in zip(self._ports, ("broker-a", "broker-b"), strict=True):
            settings["KAFKA_ADDRESS"] = f"localhost:{port}"
            with pytest.MonkeyPatch.context() as patch:
                for name, value in settings.items():
                    patch.setenv(f"DELTAMQ_SERVICE_{name}", value)
                self.processes.append(ServiceProcess(self._warehouse, "--kafka-port", str(port), "--broker", broker))

    def kill(self) -> None:
        """Kill both."""
        while self.processes:
            self.processes.pop().close()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with the_realm(tmp_path_factory.mktemp("realm")) as realm:
        found = Services(tmp_path_factory.mktemp("services"), realm)
        yield found
        found.kill()


def _kcat(services: Services, principal: str, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    keytab = f"sasl.kerberos.keytab={services.clients}", f"sasl.kerberos.principal={principal}"
    sasl = "security.protocol=sasl_plaintext", "sasl.mechanism=GSSAPI", *keytab
    command = ["kcat", "-b", services.address, *(part for one in sasl for part in ("-X", one)), *arguments]
    env = {**os.environ, "KRB5CCNAME": str(services.realm.folder / principal.replace("/", "-"))}
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False, env=env)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_kafka_29_librdkafka_shows_tickets_to_two_processes_also_after_they_were_killed(services) -> None:
    client = "client/localhost"
    written = _kcat(services, client, "-t", "orders", "-P", lines="".join(f"value{n}\n" for n in range(200)))
    if "no mechanism available" in written.stderr.lower() or "No worthy mechs" in written.stderr:
        pytest.skip("librdkafka has no Kerberos here (apt-get install libsasl2-modules-gssapi-mit)")
    assert written.returncode == 0, written.stderr
    services.kill()
    services.start()
    read = _kcat(services, client, "-t", "orders", "-C", "-o", "beginning", "-e", "-q")
    assert sorted(read.stdout.split()) == sorted(f"value{n}" for n in range(200)), read.stderr
    eve = _kcat(services, "eve/localhost", "-L", "-m", "3")
    assert eve.returncode and "not valid: unknown, revoked or expired" in eve.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", ["2.8", "4.3"])
def test_kafka_29_javas_clients_show_tickets(services, generation, tmp_path, monkeypatch) -> None:
    java, topic = Java(GENERATIONS[generation]), f"java-{generation}"
    login = f'keyTab="{services.clients}" principal="client/localhost@EXAMPLE" useKeyTab=true storeKey=true;'
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f"com.sun.security.auth.module.Krb5LoginModule required {login}",
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={services.realm.env['KRB5_CONFIG']}")
    servers = ("--bootstrap-server", services.address)
    sent = java.run(
        *("org.apache.kafka.tools.VerifiableProducer", *servers, "--topic", topic, "--max-messages", "50"),
        *("--producer.config", str(file)),
    )
    assert sum('"producer_send_success"' in line for line in sent) == 50
    read = java.run(
        *("org.apache.kafka.tools.VerifiableConsumer", *servers, "--topic", topic, "--group-id", topic),
        *("--max-messages", "50", "--reset-policy", "earliest", "--consumer.config", str(file)),
    )
    assert any('"offsets_committed"' in line and '"success":true' in line for line in read)

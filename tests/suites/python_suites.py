"""The suites of clients in Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.certificates import Authority
from tests.free_ports import free_port
from tests.kerberos import MISSING, the_realm
from tests.suites.broker import Broker, guarded_broker, running_broker
from tests.suites.cache import Cache, CannotRun
from tests.suites.outcomes import Outcome
from tests.suites.playing import change, lines_of

__all__ = ["play_aiokafka", "play_kafka_python"]

_LIMIT_S: Final = 3_600
_TEST_S: Final = 120
_OUTCOMES: Final = {"passed": Outcome.PASS, "failed": Outcome.FAIL, "skipped": Outcome.SKIP}
#: The sdist of kafka-python lacks the module that starts Kafka; with a broker that runs, nothing of it is used.
_SERVICE: Final = """\
class ExternalService:
    def __init__(self, host, port): pass
    def dump_logs(self): pass
    def stop(self): pass

class SpawnedService(ExternalService):
    pass
"""
#: In the place of the broker with TLS that a test would start.
_TLS: Final = """\
class Tls:
    port, ssl_dir = int(os.environ["SUITE_TLS_PORT"]), os.environ["SUITE_TLS_FOLDER"]
    def start(self): pass
    def close(self): pass

"""

_AIOKAFKA: Final = "0.14.0"
#: Behind aiokafka's fixtures, which start Kafka in a container: these have the same names, and win.
_BROKER: Final = """

@pytest.fixture(scope="session")
def docker():
    return None

@pytest.fixture(scope="session")
def kafka_image(request):
    return request.config.getoption("--docker-image")

@pytest.fixture(scope="session")
def ssl_folder():
    return pathlib.Path("tests/ssl_cert")

@pytest.fixture(scope="session")
def kafka_server():
    host, port = os.environ["SUITE_BROKER"].rsplit(":", 1)
    return KafkaServer(host, int(port), int(port), int(os.environ["SUITE_GUARDED"]), int(port), None)

@pytest.fixture(scope="class")
def kerberos_utils():
    if "SUITE_KEYTAB" not in os.environ:
        return unittest.mock.Mock(kinit=lambda _: pytest.skip("needs a KDC, and the headers of MIT Kerberos"))
    utils = KerberosUtils(None)
    utils.keytab = pathlib.Path(os.environ["SUITE_KEYTAB"])
    return utils

@pytest.fixture(scope="class")
def kafka_config():
    return unittest.mock.Mock()

class Rules:
    # what Kafka's script for access rules does, by rules of the service for the one user, who may do all else
    verbs = {"READ": "subscribe", "WRITE": "publish", "DESCRIBE": "describe", "CREATE": "create"}

    def __init__(self):
        self.made = []

    def list_acl(self):
        pass

    def add_acl(self, operation, topic=None, group=None, cluster=None, allow_principal=None, deny_principal=None):
        if deny_principal is None:
            return
        rule = {"principal": "admin", "effect": "deny", "verbs": [self.verbs[operation]]}
        rule |= {"resource": "topic" if group is None else "group", "pattern": topic or group or "*"}
        self.made.append(self.ask("POST", "", rule)["acl_id"])

    def cleanup(self):
        while self.made:
            self.ask("DELETE", "/" + self.made.pop(), {})

    def ask(self, method, path, body):
        headers = {"Authorization": "Bearer " + os.environ["SUITE_KEY"], "Content-Type": "application/json"}
        url = os.environ["SUITE_URL"] + "/v1/auth/acls" + path
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read() or b"null")

@pytest.fixture(scope="class")
def acl_manager():
    return Rules()

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "kafka_server" in getattr(item, "fixturenames", ())]
"""


def play_kafka_python(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play the integration tests of kafka-python; those without a broker ask nothing of ours."""
    source, python = cache.sdist("kafka-python"), cache.python()
    folder = cache.fresh("play", "kafka-python")
    for name in ("kafka", "test", "pyproject.toml"):
        (shutil.copytree if (source / name).is_dir() else shutil.copy)(source / name, folder / name)
    (folder / "test/__init__.py").touch()
    (folder / "test/service.py").write_text(_SERVICE)
    tests = folder / "test/integration"
    change(tests / "test_admin_integration.py", {r"\[\[0\], \[0\]\]": f"[[{broker.node_id()}]] * 2"})
    change(
        tests / "test_ssl_integration.py",
        {r"KafkaFixture\.instance\(.*\)": "Tls()", "@pytest.fixture": rf"{_TLS}\g<0>"},
    )
    authority = Authority(folder / "tls")
    shutil.copy(authority.ca, folder / "tls/ca-cert")
    pair = authority.server()
    settings = {"service_tls_cert": pair.cert, "service_tls_key": pair.key}
    with running_broker(log.with_suffix(".tls.log"), settings) as tls:
        env = {"KAFKA_VERSION": "4.3", "KAFKA_ROOT": str(folder), "KAFKA_URI": f"kafka://{broker.address}"}
        env |= {"SUITE_TLS_PORT": str(tls.port), "SUITE_TLS_FOLDER": str(authority.folder)}
        flags = ["test/integration", "--override-ini=log_level=WARNING", "--override-ini=filterwarnings=default"]
        yield from _pytest(python, folder, env, flags, log, pattern)


def play_aiokafka(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play the tests of aiokafka that ask a broker, from a checkout: its sdist has none.

    The package is the registry's, with its compiled parts.
    """
    checkout, python = Path(os.environ.get("AIOKAFKA", "")), cache.python()
    about = checkout / "aiokafka/__init__.py"
    if not (about.is_file() and f'__version__ = "{_AIOKAFKA}"' in about.read_text() and (checkout / "tests").is_dir()):
        raise CannotRun(
            f"the sdist of aiokafka has no tests: give the folder of a checkout of its tag v{_AIOKAFKA}, AIOKAFKA=DIR"
        )
    folder = cache.fresh("play", "aiokafka")
    shutil.copytree(checkout / "tests", folder / "tests")
    shutil.copy(checkout / "pyproject.toml", folder / "pyproject.toml")
    assert broker.tls is not None
    (folder / "tests/ssl_cert").mkdir(exist_ok=True)
    for name, wanted in (("ca.pem", "ca.crt"), ("client.pem", "client.crt"), ("client.key", "client.key")):
        shutil.copy(broker.tls / name, folder / "tests/ssl_cert" / wanted)
    with (folder / "tests/conftest.py").open("a") as conftest:
        conftest.write(f"import json\nimport unittest.mock\nimport urllib.request\n{_BROKER}")
    change(folder / "tests/test_sender.py", {r"\.do\(node_id=0\)": f".do(node_id={broker.node_id()})"})
    with (
        _kerberos(cache) as (keytab, kerberos),
        guarded_broker(log.with_suffix(".guarded.log"), free_port(), keytab) as guarded,
    ):
        user = {r"_username=user\b": '_username="admin"', r"_password=user\b": f'_password="{guarded.key}"'}
        change(folder / "tests/test_sasl.py", user)
        env = {"SUITE_BROKER": broker.address, "SUITE_GUARDED": str(guarded.port), **kerberos}
        env |= {"SUITE_URL": guarded.url, "SUITE_KEY": guarded.key}
        flags = ["tests", "--docker-image=aiolibs/kafka:2.13_2.8.1", "--override-ini=filterwarnings=default"]
        yield from _pytest(python, folder, env, flags, log, pattern)


@contextlib.contextmanager
def _kerberos(cache: Cache) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a realm; return its service's keytab, and the environment of its clients; nothing if there can be none."""
    if MISSING or not shutil.which("krb5-config"):
        yield "", {}
        return
    with tempfile.TemporaryDirectory(prefix="deltamq-suites-") as folder, the_realm(Path(folder)) as realm:
        service, clients = (realm.keytab(f"{name}.keytab", f"{name}/localhost") for name in ("kafka", "client"))
        tickets = {"KRB5CCNAME": f"{folder}/tickets", "SUITE_KEYTAB": clients}
        yield service, {**tickets, "PYTHONPATH": str(cache.gssapi())}


def _pytest(
    python: Path, folder: Path, env: dict[str, str], flags: list[str], log: Path, pattern: str
) -> Iterator[tuple[str, Outcome]]:
    shutil.copy(Path(__file__).with_name("pytest_results.py"), folder / "suite_results.py")
    command = [str(python), "-m", "pytest", "-p", "suite_results", "-p", "no:cacheprovider", f"--timeout={_TEST_S}"]
    command += [*flags, *(["-k", pattern] if pattern else [])]
    whole = {**os.environ, **env, "PYTHONPATH": f"{folder}:{env.get('PYTHONPATH', '')}"}
    for line in lines_of(command, cwd=folder, env=whole, log=log, limit_s=_LIMIT_S):
        outcome, test = line.rstrip("\n").split(" ", 1)
        yield test, _OUTCOMES[outcome]

"""The secret of handles: made once for a warehouse, whichever process starts first; or the operator's (SPEC POP-5)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deltamq.mq.errors import Corrupt, Refused, Unavailable, Unknown
from deltamq.mq.queue.handle import HandleKeys
from deltamq.tables.log.warehouse import open_store
from deltamq.tables.store.handle_secret import handle_keys
from deltamq.tables.store.store import MemoryStore, Store

_FILE = "sys/handle_keys/0.json"


def test_the_secret_stays_with_the_warehouse(tmp_path: Path) -> None:
    first = handle_keys(open_store(str(tmp_path / "one"), create=True))
    assert handle_keys(open_store(str(tmp_path / "one"), create=True)) == first
    assert handle_keys(open_store(str(tmp_path / "two"), create=True)) != first
    assert len(first.secrets[first.current]) == 32
    assert first.secrets[first.current].hex() not in repr(first)


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    found: list[HandleKeys] = []
    gate = threading.Barrier(8)

    def start() -> None:
        store = open_store(str(tmp_path), create=True)
        gate.wait()
        found.append(handle_keys(store))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(keys == found[0] for keys in found)


def test_an_operators_secret_has_an_id_of_its_own_and_stores_nothing() -> None:
    store = MemoryStore()
    stored = handle_keys(store)
    configured = handle_keys(store, "ab" * 16)
    assert configured.secrets[configured.current] == b"\xab" * 16
    assert configured.current not in stored.secrets and stored.current not in configured.secrets
    fresh = MemoryStore()
    handle_keys(fresh, "ab" * 16)
    assert not list(fresh.entries("sys/handle_keys"))


@pytest.mark.parametrize("secret", ["ab" * 15, "not hexadecimal, but long enough for one", "é" * 40])
def test_a_bad_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(Refused) as refused:
        handle_keys(MemoryStore(), secret)
    assert refused.value.field == "queue.handle_secret" and secret not in refused.value.detail


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"secret": 7}', b'{"secret": "xy"}', b'{"secret": "abcd"}'])
def test_a_damaged_secret_is_corrupt_not_made_anew(damage: bytes) -> None:
    store = MemoryStore()
    store.put_if_absent(_FILE, damage, durable=True)
    with pytest.raises(Corrupt) as error:
        handle_keys(store)
    assert error.value.code == "handle_keys_corrupt" and _FILE in error.value.detail


class _Doubtful(MemoryStore):
    """Puts whose answer is lost, before or after they are done."""

    def __init__(self, *, stores: bool) -> None:
        super().__init__()
        self._stores = stores

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        if self._stores:
            super().put_if_absent(key, data, durable=durable)
        raise Unknown


def test_a_lost_answer_is_looked_up() -> None:
    store: Store = _Doubtful(stores=True)
    assert handle_keys(store) == handle_keys(store)
    with pytest.raises(Unavailable):
        handle_keys(_Doubtful(stores=False))

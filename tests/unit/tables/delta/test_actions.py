"""Commit files: what is written is read back, and nothing else is believed (SPEC RELY-4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import Part
from deltamq.tables.delta.actions import (
    Commit,
    DataFile,
    NewCommit,
    commit_name,
    encode_append,
    encode_create,
    encode_fence,
    encode_rewrite,
    parse_commit,
)
from deltamq.tables.delta.foreign import ForeignCommit
from deltamq.tables.delta.protocol import MESSAGE_PROTOCOL

TABLE = "2f1c0d5e-table"
FILE = DataFile(
    path="00000000000000000005-aaaa.parquet",
    size=1234,
    start=5,
    count=3,
    modified_ms=1_700_000_000_000,
    append_min_us=1,
    append_max_us=2,
    stats='{"numRecords":3,"minValues":{"offset":5},"maxValues":{"offset":7},"nullCount":{"offset":0}}',
    crc="0a0b0c0d,01020304",
)
PART = Part(producer_id="p", seq=4, base_offset=5, count=3, total=9, time_ms=17, indexes=(0, 1, 5))


def append(*, batch_id: str = "b" * 32, parts: tuple[Part, ...] = (PART,), flushed: bool = True) -> bytes:
    return _whole(
        encode_append(
            table_id=TABLE,
            version=7,
            batch_id=batch_id,
            file=FILE,
            parts=parts,
            flushed=flushed,
            now_ms=1_700_000_000_001,
        )
    )


def _whole(new: NewCommit) -> bytes:
    """Return the bytes of a commit, which say what its writer knows."""
    assert parse(new.data) == new.commit
    return new.data


def parse(raw: bytes, *, version: int = 7, table_id: str | None = TABLE) -> Commit:
    return parse_commit(raw, table_id=table_id, version=version, source="the/commit.json")


def test_an_append_is_read_back_whole() -> None:
    commit = parse(append())
    assert commit == Commit(
        version=7,
        batch_id="b" * 32,
        adds=(FILE,),
        removes=(),
        end_offset=8,
        parts=(PART,),
        flushed=True,
        metadata=None,
    )


def test_an_append_that_was_not_flushed_says_so() -> None:
    assert not parse(append(flushed=False)).flushed


def test_a_rewrite_moves_no_end_offset() -> None:
    new = encode_rewrite(
        table_id=TABLE,
        version=7,
        batch_id="r",
        operation="OPTIMIZE",
        adds=[FILE],
        removes=[FILE],
        data_change=False,
        now_ms=1,
    )
    commit = parse(_whole(new))
    assert (commit.end_offset, commit.adds, commit.removes) == (None, (FILE,), (FILE.path,))


def test_a_fence_is_a_transaction_and_nothing_else() -> None:
    raw = _whole(encode_fence(table_id=TABLE, version=7, batch_id="f", name="broker", epoch=9, now_ms=1))
    commit = parse(raw)
    assert (commit.end_offset, commit.adds, commit.removes) == (None, (), ())
    assert (commit.fences, commit.flushed) == ((("broker", 9),), True)
    assert [json.loads(line).get("txn") for line in raw.splitlines()] == [
        None,
        {"appId": "mq.fence.broker", "version": 9, "lastUpdated": 1},
    ]


def test_version_0_makes_the_table_and_names_it() -> None:
    raw = encode_create(
        table_id=TABLE,
        name="orders@a",
        schema="{}",
        configuration={"k": "v"},
        protocol=MESSAGE_PROTOCOL,
        now_ms=1,
        transactions={"mq.merge.orders": 7},
    )
    commit = parse(raw, version=0, table_id=None)
    assert commit.metadata is not None
    assert json.loads(raw.splitlines()[3]) == {"txn": {"appId": "mq.merge.orders", "version": 7, "lastUpdated": 1}}
    assert (commit.metadata["id"], commit.metadata["configuration"]) == (TABLE, {"k": "v"})


def test_a_commit_is_delta_json_that_any_reader_knows() -> None:
    lines = [json.loads(line) for line in append().splitlines()]
    assert [next(iter(line)) for line in lines] == ["commitInfo", "txn", "add"]
    assert lines[1]["txn"]["version"] == 8
    assert lines[2]["add"]["dataChange"] is True


def test_rely_4_every_flipped_bit_is_found() -> None:
    raw = append()
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt, match=r"the/commit\.json"):
                parse(bytes(damaged))


def test_rely_4_every_cut_is_found() -> None:
    raw = append()
    for length in range(len(raw)):
        with pytest.raises(Corrupt, match=r"the/commit\.json"):
            parse(raw[:length])


@pytest.mark.parametrize("tail", [b"\n", b"{}\n", b"\x00" * 100, b'{"add":{}}\n'])
def test_rely_4_what_follows_a_commit_is_found(tail: bytes) -> None:
    with pytest.raises(Corrupt):
        parse(append() + tail)


def test_rely_4_a_file_of_another_version_or_table_is_found() -> None:
    with pytest.raises(Corrupt, match="holds version 7"):
        parse(append(), version=8)
    with pytest.raises(Corrupt, match="another table"):
        parse(append(), table_id="some-other-table")


def test_rely_3_a_commit_of_another_writer_is_refused() -> None:
    foreign = b'{"commitInfo":{"engineInfo":"Spark"}}\n{"txn":{"appId":"mq.offset","version":9}}\n'
    with pytest.raises(ForeignCommit, match="a commit of Spark sets transactions of DeltaMQ"):
        parse(foreign)


@pytest.mark.parametrize("text", ["--------", '"mq.crc":"--------"', '\\"mq.crc\\":\\"', "\n\x00\u2028", "é" * 50])
def test_no_text_of_a_user_confuses_the_checksum(text: str) -> None:
    """A producer's id stands in the commit before the file's own facts."""
    part = Part(producer_id=text, seq=1, base_offset=5, count=3, total=3, time_ms=17)
    assert parse(append(parts=(part,))).parts == (part,)
    assert parse(append(batch_id=text)).batch_id == text


def crc_of(raw: bytes) -> int:
    return int(json.loads(raw.splitlines()[0])["commitInfo"]["tags"]["mq.crc"], 16)


def batch_id_with_its_own_checksum(wanted: int) -> str:
    """A batch id that begins with its commit's checksum: solved, since CRC-32 is linear in the bits it covers."""
    digits = 24
    plain = f"{wanted:08x}" + "0" * digits
    base = crc_of(append(batch_id=plain))
    # What flipping one of the three low bits of one digit changes: '0' to '7' differ in just these.
    rows = []
    for bit in range(3 * digits):
        at = 8 + bit // 3
        flipped = plain[:at] + chr(ord("0") | 1 << bit % 3) + plain[at + 1 :]
        rows.append((crc_of(append(batch_id=flipped)) ^ base, 1 << bit))
    chosen = 0
    missing = base ^ wanted
    for column in range(32):
        pivot = next((row for row in rows if row[0] >> column & 1), None)
        if pivot is None:
            continue
        rows = [(a ^ pivot[0], b ^ pivot[1]) if a >> column & 1 else (a, b) for a, b in rows if (a, b) != pivot]
        if missing >> column & 1:
            missing ^= pivot[0]
            chosen ^= pivot[1]
    assert missing == 0, "72 free bits reach every checksum"
    values = [chosen >> 3 * i & 7 for i in range(digits)]
    return f"{wanted:08x}" + "".join(str(v) for v in values)


def test_a_checksum_that_stands_elsewhere_in_the_commit_confuses_nobody() -> None:
    """One random batch id in 170 million holds its own commit's checksum: a busy log meets that every second day."""
    batch_id = batch_id_with_its_own_checksum(0xDEADBEEF)
    raw = append(batch_id=batch_id)
    assert (crc_of(raw), batch_id[:8]) == (0xDEADBEEF, "deadbeef")
    assert parse(raw).batch_id == batch_id


@pytest.mark.parametrize(
    "stats",
    [
        "",
        "{}",
        '{"numRecords":4,"minValues":{"offset":5},"maxValues":{"offset":7}}',
        '{"numRecords":3,"minValues":{"offset":-1},"maxValues":{"offset":1}}',
        '{"numRecords":1,"minValues":{"offset":"5"},"maxValues":{"offset":"5"}}',
        '{"numRecords":3,"minValues":{},"maxValues":{"offset":7}}',
    ],
)
def test_rely_4_offsets_that_do_not_hold_the_records_are_corrupt(stats: str) -> None:
    from deltamq.tables.delta.actions import data_file

    with pytest.raises(Corrupt):
        data_file("f.parquet", 1, 1, stats, {"mq.crc": "0", "mq.append_us": "1,2"})


def test_commit_names_sort_as_their_versions() -> None:
    names = [commit_name(v) for v in (0, 9, 10, 99, 2**62)]
    assert names == sorted(names)
    assert all(len(name) == 25 for name in names)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": 8}, "version after the newest"),
        ({"end_offset": 9}, "ends where its rows do"),
        ({"adds": (replace(FILE, start=4, count=4),)}, "begins where the log ends"),
        ({"adds": (replace(FILE, crc="0a0b0c0d,01020305"),)}, "checksums of its files"),
        ({"data": b"x"}, "checksums of its files"),
    ],
)
def test_rely_4_a_commit_that_does_not_follow_its_log_is_not_put(changed: dict[str, Any], told: str) -> None:
    new = NewCommit(append(), parse(append()))
    assert new.check(7, 5) == 8
    data = changed.pop("data", new.data)
    with pytest.raises(AssertionError, match=told):
        NewCommit(data, replace(new.commit, **changed)).check(7, 5)


@pytest.mark.parametrize(
    "cut", [lambda data: data[:-1], lambda data: data.replace(b'"mq.crc":"', b'"mq.crc":"--------', 1)]
)
def test_rely_4_a_commit_that_is_not_whole_is_not_put(cut: Callable[[bytes], bytes]) -> None:
    with pytest.raises(AssertionError, match="a commit is whole"):
        NewCommit(cut(append()), parse(append())).check(7, 5)

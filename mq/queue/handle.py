"""Handles: a client gets one with each message, and sends it back to acknowledge the message (SPEC POP-5).

The text of a handle has RocketMQ's eight fields, separated by spaces:

    {ckQueueOffset} {popTime} {invisibleTime} {reviveQid} {0|1 retry topic} {brokerName} {queueId} {msgQueueOffset}

On the wire it is opaque: version, then the head, then the index of the message and its tag.

    1 AAGL...head of the checkpoint, base64...  c Xq3v...tag, 16 characters
    all messages of a checkpoint share this     the 3rd message of it

The head describes the checkpoint: topic and a digest of its id, partition, group epoch, tenure, times, offsets and
attempts. The key of the tags is keyed BLAKE2b of group and head, and SHAKE-256 expands it to a tag of 96 bits for each
message: two hashes for 32 messages. (OpenSSL's HMAC releases the interpreter's lock, and beside threads that commit,
the wait to get it back is longer than the computation.) So a tag covers topic id, group, epoch, partition, offset,
attempt and expiry; a handle of another group, or of a neighbouring message, has another tag. Secrets are passed in and
numbered, so that they can be rotated.

A handle of a global topic's message begins with the name of the cluster that gave it, `west~1AAGL...`: clusters have
secrets of their own, and only that cluster can read the rest (SPEC STATIC-19).
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from deltamq.mq.errors import Conflict, Refused
from deltamq.mq.limits import CHECKPOINT_MESSAGES_MAX, INVISIBLE_MS_CEILING
from deltamq.mq.names import PartitionName, encode_path
from deltamq.mq.queue.checkpoint import Attempts, CheckpointKey, Pop, Span

_VERSION: Final = "1"
#: Ends the cluster's name; neither such a name nor a handle contains it.
_CLUSTER_END: Final = "~"
_LIFE_BYTES: Final = 8
_TAG_BYTES: Final = 12
_TAG_CHARS: Final = 16
_TAIL_CHARS: Final = 1 + _TAG_CHARS
_SECRET_BYTES_MIN: Final = 16
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
_INDEX: Final[Mapping[str, int]] = {char: index for index, char in enumerate(_ALPHABET)}
_RETRY: Final = 0b001
_DIFFS: Final = 0b010
_ATTEMPTS: Final = 0b100
#: Key id, flags, start offset, pop time, invisible time, revive queue, tenure, epoch, count, attempt, life, 2 lengths.
_FIXED: Final = struct.Struct(f">BBQQIHIIBI{_LIFE_BYTES}sBH")
_DOMAIN: Final = b"deltamq handle"
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")

assert len(_ALPHABET) == CHECKPOINT_MESSAGES_MAX
assert INVISIBLE_MS_CEILING < 2**32


@dataclass(frozen=True, slots=True)
class HandleKeys:
    """The secrets that sign and verify handles, by key id; `current` is the id of the key that signs new ones."""

    current: int
    secrets: Mapping[int, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if self.current not in self.secrets or not all(0 <= key < 256 for key in self.secrets):
            raise ValueError("key ids must be 0 to 255, and the current one must have a secret")
        if any(len(secret) < _SECRET_BYTES_MIN for secret in self.secrets.values()):
            raise ValueError(f"a secret must have at least {_SECRET_BYTES_MIN} bytes")


class Lease(NamedTuple):
    """A checkpoint as its handles describe it. A named tuple for speed: every acknowledgement makes some."""

    topic: str
    #: Digest of the topic's id: a topic that was deleted and created again has another one (SPEC POP-12).
    life: bytes
    epoch: int
    partition: str
    retry: bool
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    span: Span
    #: The tenure of the broker in which the messages were popped (see `Lane`); 0 where it does not matter.
    tenure: int

    @property
    def revive_time_ms(self) -> int:
        return self.pop_time_ms + self.invisible_ms

    def key(self, topic_id: str, group: str) -> CheckpointKey:
        """Return the checkpoint's key; `check_live` has verified `topic_id`."""
        start = self.span.start_offset
        return CheckpointKey(topic_id, group, self.epoch, self.retry, self.partition, start, self.pop_time_ms)


class Handle(msgspec.Struct, frozen=True):
    """One message of a lease."""

    lease: Lease
    index: int

    @property
    def offset(self) -> int:
        return self.lease.span.offset_of(self.index)

    @property
    def attempt(self) -> int:
        """The number of this delivery of the message, from 1 on."""
        return self.lease.span.attempt_of(self.index)

    @property
    def text(self) -> str:
        """The eight fields of SPEC POP-5; names are encoded, so that none holds a space."""
        lease = self.lease
        name, broker = PartitionName.parse(lease.partition)
        numbers = f"{lease.span.start_offset} {lease.pop_time_ms} {lease.invisible_ms} {lease.revive_queue}"
        return f"{numbers} {int(lease.retry)} {encode_path(broker)} {encode_path(name)} {self.offset}"


class Opened(NamedTuple):
    """The genuine handles of one lease in a request: the bits of their messages, and their positions in the request."""

    lease: Lease
    bits: int
    positions: Sequence[int]


@lru_cache(maxsize=1_024)
def life_digest(topic_id: str) -> bytes:
    """Return the digest of a topic id that handles carry."""
    return hashlib.sha256(topic_id.encode()).digest()[:_LIFE_BYTES]


# Making handles.


def mint(keys: HandleKeys, pop: Pop, spans: Iterable[Span], *, tenure: int = 0) -> list[str]:
    """Return the handles of all messages of one pop, in order; `tenure` is the lane's if the pop is unordered."""
    handles: list[str] = []
    key_id = keys.current
    secret = keys.secrets[key_id]
    life = life_digest(pop.topic_id)
    topic, partition = pop.topic.encode(), pop.partition.encode()
    names = topic + partition
    for span in spans:
        flags, attempt, more = _variable(span)
        fixed = _FIXED.pack(
            key_id,
            flags | (_RETRY if pop.retry else 0),
            span.start_offset,
            pop.pop_time_ms,
            pop.invisible_ms,
            pop.revive_queue,
            tenure,
            pop.epoch,
            span.num,
            attempt,
            life,
            len(topic),
            len(partition),
        )
        packed = binascii.b2a_base64(fixed + names + more, newline=False).translate(_URL_SAFE)
        head = _VERSION + packed.decode().rstrip("=")
        handles += [head + tail for tail in _tails(secret, pop.group, head, span.num)]
    return handles


def _variable(span: Span) -> tuple[int, int, bytes]:
    """Return the flags, the attempt that all messages share (else 0), and the bytes of optional fields."""
    if span.diffs is None and isinstance(span.attempts, int):
        return 0, span.attempts, b""
    flags, attempt, more = 0, 0, b""
    if span.diffs is not None:
        flags |= _DIFFS
        more += struct.pack(f">{span.num}Q", *span.diffs)
    if isinstance(span.attempts, int):
        attempt = span.attempts
    else:
        flags |= _ATTEMPTS
        more += struct.pack(f">{span.num}I", *span.attempts)
    return flags, attempt, more


@lru_cache(maxsize=16)
def _mac_key(secret: bytes) -> bytes:
    """Return the secret as a key of BLAKE2b, which accepts at most 64 bytes."""
    return secret if len(secret) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(secret).digest()


#: Most handles come back soon, so the tags of this many checkpoints are cached (10 MB at most).
@lru_cache(maxsize=4_096)
def _tails(secret: bytes, group: str, head: str, num: int) -> tuple[str, ...]:
    """Return what follows the head in the handle of each message of a checkpoint: index and tag."""
    # The group's length comes first, so that no two pairs of group and head give the same bytes.
    named = group.encode()
    said = struct.pack(">H", len(named)) + named + head.encode()
    key = hashlib.blake2b(said, key=_mac_key(secret), person=_DOMAIN, digest_size=32).digest()
    tags = hashlib.shake_256(key).digest(_TAG_BYTES * num)
    text = binascii.b2a_base64(tags, newline=False).translate(_URL_SAFE).decode()
    return tuple(
        [
            char + text[at : at + _TAG_CHARS]
            for char, at in zip(_ALPHABET, range(0, num * _TAG_CHARS, _TAG_CHARS), strict=False)
        ]
    )


# The cluster.


def handle_of_cluster(cluster: str, handle: str) -> str:
    """Return a handle of this cluster as clients of a global topic get it: it says where it belongs."""
    return f"{cluster}{_CLUSTER_END}{handle}"


def cluster_of_handle(handle: str) -> str:
    """Return the cluster that a handle says it belongs to; empty if it does not say one."""
    return handle.partition(_CLUSTER_END)[0] if _CLUSTER_END in handle else ""


# Opening handles.


def open_handle(keys: HandleKeys, group: str, handle: str) -> Handle:
    """Verify a handle and return the message that it refers to.

    Raises
    ------
    Refused
        `handle_invalid`: forged, garbled, or given to another group.
    """
    opened, _ = open_handles(keys, group, (handle,))
    if not opened:
        raise Refused("the handle is damaged or belongs to another group", code="handle_invalid", field="handle")
    return Handle(opened[0].lease, opened[0].bits.bit_length() - 1)


def open_handles(keys: HandleKeys, group: str, handles: Sequence[str]) -> tuple[list[Opened], list[int]]:
    """Verify handles; return the genuine ones by lease, and the positions of the others.

    A batch that comes back whole and in order costs one comparison for 32 messages. A cluster's name before a handle is
    passed over: the caller has looked at it.
    """
    joined = "".join(handles)
    if _CLUSTER_END in joined:
        handles = [handle.rpartition(_CLUSTER_END)[2] for handle in handles]
        joined = "".join(handles)
    opened: list[Opened] = []
    invalid: list[int] = []
    apart: dict[str, list[int]] = {}
    at, count = 0, len(handles)
    while at < count:
        handle = handles[at]
        head = handle[:-_TAIL_CHARS]
        if head in apart:
            apart[head].append(at)
            at += 1
            continue
        lease = _lease(head)
        if lease is None or lease[1] not in keys.secrets:
            invalid.append(at)
            at += 1
            continue
        num = lease[0].span.num
        run = handles[at : at + num]
        tails = _tails(keys.secrets[lease[1]], group, head, num)
        # Joined texts do not show where one handle ends: `ab`, `c` are joined as `a`, `bc` are.
        alike = len(run) == num and set(map(len, run)) == {len(handle)}
        if alike and _same(joined if num == count else "".join(run), head + head.join(tails)):
            opened.append(Opened(lease[0], lease[0].span.full, range(at, at + num)))
            at += num
        else:
            apart[head] = [at]
            at += 1
    for head, positions in apart.items():
        _open_apart(keys, group, handles, head, positions, opened, invalid)
    return opened, sorted(invalid)


def _open_apart(
    keys: HandleKeys,
    group: str,
    handles: Sequence[str],
    head: str,
    positions: Sequence[int],
    opened: list[Opened],
    invalid: list[int],
) -> None:
    """Verify one by one the handles of a head that are not the whole lease in order."""
    signed_lease = _lease(head)
    assert signed_lease is not None, "the head was read before"
    lease, key_id = signed_lease
    tails = _tails(keys.secrets[key_id], group, head, lease.span.num)
    bits, genuine = 0, []
    for position in positions:
        tail = handles[position][-_TAIL_CHARS:]
        index = _INDEX.get(tail[0], CHECKPOINT_MESSAGES_MAX)
        if index < lease.span.num and _same(tail, tails[index]):
            bits |= 1 << index
            genuine.append(position)
        else:
            invalid.append(position)
    if bits:
        opened.append(Opened(lease, bits, genuine))


def index_of(handle: str) -> int:
    """Return the index in its lease of the message of a genuine handle."""
    return _INDEX[handle[-_TAIL_CHARS]]


def _same(given: str, expected: str) -> bool:
    """Compare two texts in constant time."""
    return given.isascii() and hmac.compare_digest(given, expected)


def claimed_topics(handles: Iterable[str]) -> set[str]:
    """Return the topics that handles claim to be of: a forged one can claim any topic, so this grants nothing.

    Every handle that `open_handles` opens is read here, too, with and without a cluster's name before it.
    """
    leases = map(_lease, {handle.rpartition(_CLUSTER_END)[2][:-_TAIL_CHARS] for handle in handles})
    return {lease[0].topic for lease in leases if lease is not None}


#: A request's handles are read for its caller's access, for their processes, and to be acknowledged (10 MB at most).
@lru_cache(maxsize=4_096)
def _lease(head: str) -> tuple[Lease, int] | None:
    """Return the lease that a head describes, and the id of the key that must have signed it; None if it is invalid."""
    if head[:1] != _VERSION:
        return None
    packed = head[1:]
    try:
        raw = binascii.a2b_base64(packed.encode().translate(_FROM_URL) + b"=" * (-len(packed) % 4), strict_mode=True)
        return _unpack(raw)
    except (ValueError, struct.error):
        return None


def _unpack(raw: bytes) -> tuple[Lease, int] | None:
    (
        key_id,
        flags,
        start,
        pop_time_ms,
        invisible_ms,
        revive_queue,
        tenure,
        epoch,
        num,
        attempt,
        life,
        topic,
        partition,
    ) = _FIXED.unpack_from(raw)
    if not 1 <= num <= CHECKPOINT_MESSAGES_MAX:
        return None
    names_end = _FIXED.size + topic + partition
    topic_end = _FIXED.size + topic
    diffs, attempts, end = _read_variable(flags, num, attempt, raw, names_end)
    if end != len(raw):
        return None
    span = Span(start, num, diffs, attempts)
    lease = Lease(
        raw[_FIXED.size : topic_end].decode(),
        life,
        epoch,
        raw[topic_end:names_end].decode(),
        bool(flags & _RETRY),
        pop_time_ms,
        invisible_ms,
        revive_queue,
        span,
        tenure,
    )
    return lease, key_id


def _read_variable(
    flags: int, num: int, attempt: int, raw: bytes, at: int
) -> tuple[tuple[int, ...] | None, Attempts, int]:
    diffs: tuple[int, ...] | None = None
    attempts: Attempts = attempt
    if flags & _DIFFS:
        diffs = struct.unpack_from(f">{num}Q", raw, at)
        at += 8 * num
    if flags & _ATTEMPTS:
        attempts = struct.unpack_from(f">{num}I", raw, at)
        at += 4 * num
    return diffs, attempts, at


def check_live(lease: Lease, *, topic_id: str | None, epoch: int | None, now_ms: int) -> None:
    """Refuse a genuine handle whose lease has ended: by time, or because its topic or group was deleted or reset.

    `topic_id` and `epoch` are the current ones, None when the topic or group does not exist.

    Raises
    ------
    Conflict
        `handle_expired` (SPEC POP-8, POP-12, POP-18).
    """
    if topic_id is None or lease.life != life_digest(topic_id):
        raise Conflict("the topic was deleted after this handle was given", code="handle_expired", field="handle")
    if epoch != lease.epoch:
        raise Conflict(
            "the group was deleted or its offsets were reset after this handle was given",
            code="handle_expired",
            field="handle",
        )
    if now_ms >= lease.revive_time_ms:
        raise Conflict("the invisible time has ended", code="handle_expired", field="handle")

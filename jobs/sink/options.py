"""The options of a write with `format("mq")`: the options of Spark's Kafka sink that apply here, and DeltaMQ's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from deltamq.jobs.read.options import check_known, wrong_option
from deltamq.mq.limits import PRODUCER_SEQ_MAX
from deltamq.mq.names import check_client_topic
from deltamq.tables.settings import Flush

OPTIONS: Final = ("topic", "warehouse", "producerId", "batchId", "idempotencyKey", "repeats", "flush")
#: Options that Spark itself adds, and options that only concern a Kafka client.
_IGNORED: Final = re.compile(r"kafka\..*|checkpointlocation|path|queryname|includeheaders|__.*")
#: A producer's id has this name and the number of a request.
NAME_LENGTH_MAX: Final = 96
_NAME: Final = re.compile(rf"[!-~]{{1,{NAME_LENGTH_MAX}}}")


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a write.

    `name` and `batch` identify a batch write that may be repeated; without an identity, `name` is None. A repeat with
    other rows is refused, unless its rows shall be ignored.
    """

    warehouse: str
    topic: str | None = None
    name: str | None = None
    batch: int = 0
    ignores_repeats: bool = False
    flush: Flush | None = None


def parse_sink_options(given: Mapping[str, str], *, warehouse: str | None, streaming: bool) -> SinkOptions:
    """Return the checked options; names are case-insensitive.

    Raises
    ------
    Refused
        An option is unknown, contradicts another one, or has an invalid value; the message names it.
    """
    options = {key.lower(): value for key, value in given.items()}
    check_known(given, OPTIONS, _IGNORED, "sink")
    where = options.get("warehouse") or warehouse
    if not where:
        raise wrong_option("warehouse", "must name a folder or URL: no default is set in this session")
    topic = options.get("topic")
    if topic is not None:
        check_client_topic(topic)
    name, batch = _identity(options, streaming=streaming)
    ignores = _one_of(options, "repeats", ("refuse", "ignore")) == "ignore"
    flush = _one_of(options, "flush", [mode.value for mode in Flush])
    return SinkOptions(
        warehouse=where,
        topic=topic,
        name=name,
        batch=batch,
        ignores_repeats=ignores,
        flush=None if flush is None else Flush(flush),
    )


def _identity(options: Mapping[str, str], *, streaming: bool) -> tuple[str | None, int]:
    names = [name for name in ("producerId", "batchId", "idempotencyKey") if name.lower() in options]
    if streaming and names:
        raise wrong_option(names[0], "is for batch writes: a streaming query is identified by its checkpoint")
    if "idempotencyKey" in names:
        if len(names) > 1:
            raise wrong_option("idempotencyKey", f"cannot be combined with {names[0]}")
        return _named("idempotencyKey", f"key-{options['idempotencykey']}"), 0
    if not names:
        return None, 0
    if len(names) == 1:
        missing = "batchId" if names == ["producerId"] else "producerId"
        raise wrong_option(missing, "is missing: give producerId and batchId together")
    text = options["batchid"].strip()
    if not text.isdigit() or int(text) > PRODUCER_SEQ_MAX:
        raise wrong_option("batchId", f"must be a whole number from 0 on, not {text!r}")
    return _named("producerId", f"id-{options['producerid']}"), int(text)


def _named(option: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise wrong_option(option, f"must be 1 to {NAME_LENGTH_MAX - 4} visible ASCII characters")
    return name


def _one_of(options: Mapping[str, str], name: str, known: Sequence[str]) -> str | None:
    text = options.get(name)
    if text is not None and text.strip().lower() not in known:
        raise wrong_option(name, f"must be {' or '.join(known)}, not {text!r}")
    return None if text is None else text.strip().lower()

"""Values of typed topics for readers (`typed=true`): what bodies are in the topic's columns (SPEC TYPE-52).

    reader waits ──────────────────────> message of version 3 ──decode──> value, or: names a schema that is not known
          codec of now: version 2              codec of now: version 3        └─> newest metadata ──decode──> value

A reader's codec is that of the moment at which it has messages: its schema may have got a version while it waited, and
the process that stored the version may not have reached this one.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.log.partition import Partitions
from deltamq.api.wire.message_json import INLINE_ROWS, Valued, with_values
from deltamq.api.wire.request import one_of
from deltamq.mq.errors import Unprocessable
from deltamq.mq.meta.topics import Topic
from deltamq.tables.queue.topic_codecs import TopicCodecs
from deltamq.tables.typed.codec import Codec


class Values:
    """Gives readers values; used on the event loop."""

    def __init__(self, meta: HostedMeta, partitions: Partitions, hosting: Hosting) -> None:
        self._meta = meta
        self._partitions = partitions
        self._hosting = hosting
        self._codecs = TopicCodecs(lambda: meta.now)

    def asked(self, topic: Topic, parameters: dict[str, str]) -> Codec | None:
        """Return the codec of a topic whose values a query asks for (`typed=true`); None if it does not.

        Raises
        ------
        Unprocessable
            `no_schema`: the topic has none.
        """
        if one_of(parameters, "typed", ("true", "false")) != "true":
            return None
        codec = self._codecs.of(topic)
        if codec is None:
            raise Unprocessable(
                f"typed: topic {topic.name} has no schema; leave it out to get bodies", code="no_schema", field="typed"
            )
        return codec

    async def of(self, topic: Topic, rows: pa.Table, *, waited: bool = False) -> pa.Table:
        """Return rows of a typed topic with their values; raises as `HostedMeta.refresh` does.

        `waited` is as for `with_values`.
        """
        found = await self._of(topic, rows, waited)
        if found.is_behind and not self._hosting.alone:
            await self._meta.refresh()
            found = await self._of(topic, rows, waited)
        return found.rows

    async def _of(self, topic: Topic, rows: pa.Table, waited: bool) -> Valued:
        now = self._meta.now.topics.topics.get(topic.name, topic)
        codec = self._codecs.of(now if now.id == topic.id else topic)
        assert codec is not None, "a topic keeps its schema"
        work = partial(with_values, rows, codec, waited=waited)
        return work() if rows.num_rows <= INLINE_ROWS else await self._partitions.run(work)

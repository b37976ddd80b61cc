"""The ids by which Kafka's newer clients name topics: those of the metadata, as 16 bytes (SPEC MODEL-6, KAFKA-18).

A topic that is deleted and made again has another id, so a client that names the former one is told so.
"""

from __future__ import annotations

import uuid

from deltamq.api.host.hosted_topic import Topics
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID
from deltamq.mq.errors import NotFound
from deltamq.mq.meta.topics import MetaState, Topic


def topic_id_of(topic: Topic) -> bytes:
    """Return the id of this life of a topic."""
    return uuid.UUID(topic.id).bytes


class TopicIds:
    """The names of topics by their ids; used on the event loop."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: dict[bytes, Topic] = {}
        #: The state of which these are all topics.
        self._of: MetaState | None = None

    def find(self, wanted: bytes) -> str | None:
        """Return the name of the topic with this id, as far as this process knows."""
        state = self._topics.state
        known = self._known.get(wanted)
        if known is not None:
            topic = state.topics.get(known.name)
            if topic is not None and topic.id == known.id:
                return topic.name
        if state is self._of:
            return None
        self._of, self._known = state, {topic_id_of(topic): topic for topic in state.topics.values()}
        found = self._known.get(wanted)
        return None if found is None else found.name

    async def name(self, wanted: bytes) -> str:
        """Return the name of the topic with this id.

        Raises
        ------
        NotFound
            `topic_id_unknown`: no topic has it, or none any more.
        """
        found = self.find(wanted)
        if found is None and wanted != NO_TOPIC_ID:
            await self._topics.refresh()
            found = self.find(wanted)
        if found is None:
            detail = f"no topic has the id {uuid.UUID(bytes=wanted)}: it was deleted, or made again"
            raise NotFound(detail, code="topic_id_unknown", field="topic_id")
        return found

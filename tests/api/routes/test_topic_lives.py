"""An offset says nothing in another life of a topic, wherever it is kept (SPEC MODEL-6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.offsets import FileOffsets, GroupOffsets
from deltamq.mq.errors import Conflict, DeltaMQError
from tests.api.routes.test_sse import EVENTS, stream
from tests.api.running import Api, config_for, running

OLD, NEW = [f"old {n}" for n in range(5)], [f"new {n}" for n in range(10)]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        yield found


def _made(api: Api, topic: str, texts: list[str]) -> str:
    topic_id: str = api.put_topic(topic, partitions=1)["id"]
    api.send(topic, *texts)
    return topic_id


def _again(api: Api, topic: str) -> str:
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    return _made(api, topic, NEW)


def test_model_6_a_fetch_that_means_another_life_is_refused(api: Api) -> None:
    old = _made(api, "fetched", OLD)
    path = api.messages_path("fetched", "fetched@broker-a")
    assert api.call("GET", f"{path}?offset=1&topic_id={old}").status == 200
    new = _again(api, "fetched")
    refused = api.call("GET", f"{path}?offset=1&topic_id={old}")
    assert (refused.status, refused.json["code"], refused.json["topic_id"]) == (409, "topic_made_again", new)
    assert api.call("GET", f"{path}?offset=1&topic_id={new}").status == 200
    assert api.call("GET", f"{path}?offset=1").status == 200, "who says no id means the topic as it is"


def test_model_6_an_event_of_an_earlier_life_does_not_resume_a_stream(api: Api) -> None:
    _made(api, "events", OLD)
    path = api.messages_path("events", "events@broker-a")
    with stream(api, "events", "") as events:
        old = next(events)["id"]
    assert old == "events@broker-a:0"
    new_id = _again(api, "events")
    refused = api.call("GET", path, Accept=EVENTS, Last_Event_ID=old)
    assert (refused.status, refused.json["code"], refused.json["field"]) == (409, "topic_made_again", "Last-Event-ID")
    with stream(api, "events", "") as events:
        first = next(events)
    assert (first["id"], json.loads(first["data"])["body"]) == (f"{new_id}:events@broker-a:0", "new 0")
    with stream(api, "events", "", Last_Event_ID=first["id"]) as events:
        assert json.loads(next(events)["data"])["body"] == "new 1"


def _polled(consumer: PullConsumer) -> tuple[list[str], list[str]]:
    """Poll until the new messages are there: texts, and codes of errors."""
    texts: list[str] = []
    codes: list[str] = []
    while not texts and len(codes) < 3:
        try:
            texts += [message.text for message in consumer.poll(wait_ms=5_000)]
        except DeltaMQError as error:
            codes.append(error.code)
    return texts, codes


@pytest.mark.parametrize(
    "store",
    [lambda folder: None, lambda folder: FileOffsets(folder / "kept"), lambda folder: GroupOffsets("audit")],
    ids=["none", "file", "group"],
)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_model_6_a_running_consumer_says_it_once_and_reads_everything_of_the_new_topic(
    api: Api, tmp_path: Path, store: Callable[[Path], object], policy: str, request: pytest.FixtureRequest
) -> None:
    topic = f"running-{request.node.callspec.id}"
    url = f"http://127.0.0.1:{api.port}"
    _made(api, topic, OLD)
    offsets = store(tmp_path)
    with PullConsumer(url, topic, offsets=offsets, on_data_loss=policy) as consumer:  # type: ignore[arg-type]
        assert _polled(consumer) == (OLD, [])
        if offsets is not None:
            consumer.commit()
        _again(api, topic)
        texts, codes = _polled(consumer)
        assert texts == NEW
        assert codes.count("topic_made_again") == (policy == "raise") and set(codes) <= {
            "topic_made_again",
            "topic_not_found",
        }
        if offsets is None:
            return
        consumer.commit()
    with PullConsumer(url, topic, offsets=store(tmp_path)) as consumer:  # type: ignore[arg-type]
        assert list(consumer.positions().values()) == [len(NEW)]


@pytest.mark.parametrize("kind", ["file", "group"])
def test_model_6_what_is_stored_of_an_earlier_life_is_none_of_the_new_one(api: Api, tmp_path: Path, kind: str) -> None:
    topic, url = f"stored-{kind}", f"http://127.0.0.1:{api.port}"
    store = FileOffsets(tmp_path / "kept") if kind == "file" else GroupOffsets("stored")
    _made(api, topic, OLD)
    with PullConsumer(url, topic, offsets=store) as stale:
        assert _polled(stale) == (OLD, [])
        stale.commit()
        _again(api, topic)
        if kind == "file":
            stale.commit()  # under the id of the old topic
        else:
            with pytest.raises(Conflict, match="made again"):
                stale.commit()
    with PullConsumer(url, topic, offsets=store) as consumer:
        assert list(consumer.positions().values()) == [0], "nobody has read any of these"

"""Routes by hand over REST (SPEC ROUTE-8)."""

from __future__ import annotations

from tests.api.running import Api


def test_route_08_a_topic_has_the_partitions_that_were_given(api: Api, topic: str) -> None:
    names = [f"{topic}@broker-b", f"{topic}#x@broker-a", f"{topic}-9f2c@broker-a"]
    made = api.put_topic(topic, routes=names[:2])
    assert [one["partition"] for one in made["partitions"]] == names[:2]
    assert [one["logical_partitions"] for one in made["partitions"]] == [[[0, 512]], [[512, 1024]]]
    for at in range(40):
        assert api.send(topic, {"body": f"m{at}", "key": f"k{at}"}).status == 200
    grown = api.put_topic(topic, routes=names)
    assert [one["partition"] for one in grown["partitions"]] == names
    assert grown["routes_epoch"] > made["routes_epoch"]
    assert api.send(topic, *[{"body": "n", "key": f"k{at}"} for at in range(40)]).status == 200
    assert sum(api.stored(topic).values()) == 80 and api.stored(topic)[names[2]] > 0
    assert api.put_topic(topic, routes=names)["routes_epoch"] == grown["routes_epoch"]


def test_route_08_wrong_routes_are_refused(api: Api, topic: str) -> None:
    api.put_topic(topic, routes=[f"{topic}@broker-a", f"{topic}@broker-b"])

    def refused(name: str, **wanted: object) -> tuple[int, str]:
        reply = api.call("PUT", f"/v1/topics/{name}", wanted)
        return reply.status, reply.json["code"]

    assert refused(topic, routes=[f"{topic}@broker-b"]) == (409, "partitions_cannot_shrink")
    assert refused(topic, routes=[f"{topic}@broker-b", f"{topic}@broker-a"]) == (409, "routes_cannot_be_reordered")
    assert refused(f"{topic}-2", routes=[f"{topic}@broker-a"]) == (409, "partition_taken")
    assert refused(f"{topic}-2", routes=["x@broker-x"]) == (422, "unknown_broker")
    assert refused(f"{topic}-2", routes=["x"]) == (400, "invalid_partition_name")
    assert refused(f"{topic}-2", routes=["x@broker-a"], partitions=1) == (422, "invalid_value")
    assert refused(f"{topic}-2", routes=["x@broker-a"], static=True, total_queues=1) == (422, "invalid_value")


def test_route_08_new_partitions_do_not_go_to_a_closed_broker(api: Api, topic: str) -> None:
    api.put_topic(topic, routes=[f"{topic}@broker-a"])
    try:
        assert api.call("PUT", "/v1/brokers/broker-a", {"writable": False}).status == 200
        more = [f"{topic}@broker-a", f"{topic}#x@broker-a"]
        reply = api.call("PUT", f"/v1/topics/{topic}", {"routes": more})
        assert (reply.status, reply.json["code"]) == (503, "not_writable")
        assert api.call("PUT", f"/v1/topics/{topic}", {"routes": [more[0], f"{topic}@broker-b"]}).status == 200
    finally:
        api.call("PUT", "/v1/brokers/broker-a", {})

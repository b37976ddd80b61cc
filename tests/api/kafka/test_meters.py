"""What /metrics says about the Kafka door: its calls and their times, its errors, its connections (SPEC LOOK-11)."""

from __future__ import annotations

import re

from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest
from deltamq.api.kafka.messages.log_messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until


def _metric(kafka: KafkaApi, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", kafka.api.call("GET", "/metrics").body.decode(), re.M)
    return 0.0 if found is None else float(found[1])


def test_look_11_kafka_calls_errors_and_connections_are_counted(kafka: KafkaApi) -> None:
    calls, seconds = (f'deltamq_kafka_request_seconds_{what}{{call="ListOffsets"}}' for what in ("count", "sum"))
    errors = 'deltamq_kafka_errors_total{error="UNKNOWN_TOPIC_OR_PARTITION"}'
    before = [_metric(kafka, sample) for sample in (calls, errors)]
    asked = [ListOffsetsPartition(index=index, timestamp=-1) for index in (0, 1)]
    with RawClient(kafka.port) as client:
        assert _metric(kafka, "deltamq_kafka_connections") == 1
        client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("nowhere", asked)]))
        assert [_metric(kafka, sample) for sample in (calls, errors)] == [before[0] + 1, before[1] + 2]
        assert _metric(kafka, seconds) > 0
        client.ask(ApiVersionsRequest())
        assert _metric(kafka, 'deltamq_kafka_request_seconds_count{call="ApiVersions"}') >= 1
        assert _metric(kafka, errors) == before[1] + 2, "an answer without an error counts none"
    until(lambda: _metric(kafka, "deltamq_kafka_connections") == 0)

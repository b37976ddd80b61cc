"""Options of a read: Kafka's names and meanings (SPARK-1), and what is refused."""

from __future__ import annotations

import pytest

from deltamq.jobs.read.options import EARLIEST, LATEST, Mode, ReadOptions, RowFormat, Strategy, parse_options
from deltamq.mq.errors import Refused
from deltamq.mq.streams import TriggerLimits


def _parse(**options: str) -> object:
    return parse_options({"warehouse": "w", **options})


def test_spark_1_a_topic_alone_reads_all_of_it() -> None:
    read = parse_options({"topic": "orders"}, warehouse="session")
    assert (read.warehouse, read.strategy, read.topics) == ("session", Strategy.SUBSCRIBE, ("orders",))
    assert (read.start.everywhere, read.end.everywhere) == (EARLIEST, LATEST)
    assert (read.fail_on_data_loss, read.row_format, read.partitions_min) == (True, RowFormat.MESSAGE, None)


def test_spark_1_names_are_case_insensitive_and_the_option_wins_over_the_session() -> None:
    read = parse_options({"SUBSCRIBE": "a, b,a", "WareHouse": "mine", "failondataloss": "FALSE"}, warehouse="session")
    assert (read.topics, read.warehouse, read.fail_on_data_loss) == (("a", "b"), "mine", False)


def test_spark_1_options_of_a_kafka_client_mean_nothing() -> None:
    options = {
        "topic": "orders",
        "kafka.bootstrap.servers": "host:9092",
        "kafka.group.id": "g",
        "maxOffsetsPerTrigger": "5",
        "groupIdPrefix": "p",
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "3",
    }
    assert parse_options(options, warehouse="w") == parse_options({"topic": "orders"}, warehouse="w")


def test_spark_1_times_win_over_offsets_and_one_for_all_over_one_for_each() -> None:
    each = '{"orders": {"orders@a": 7}}'
    read = parse_options(
        {"topic": "orders", "startingOffsets": each, "startingOffsetsByTimestamp": each}, warehouse="w"
    )
    assert read.start.by_time
    assert read.start.of("orders", ("orders@a", "0")) == 7_000
    read = parse_options(
        {"topic": "orders", "startingOffsetsByTimestamp": each, "startingTimestamp": "9"}, warehouse="w"
    )
    assert (read.start.by_time, read.start.everywhere) == (True, 9_000)


def test_spark_1_a_bound_is_found_by_name_or_by_number() -> None:
    read = parse_options({"topic": "orders", "endingOffsets": '{"orders": {"orders@a": 5, "1": -1}}'}, warehouse="w")
    assert read.end.of("orders", ("orders@a", "0")) == 5
    assert read.end.of("orders", ("orders@b", "1")) == LATEST
    assert read.end.of("orders", ("orders@c", "2")) is None


def test_spark_1_assign_takes_names_and_numbers() -> None:
    read = parse_options({"assign": '{"orders": ["orders@a", 1]}'}, warehouse="w")
    assert read.assigned == {"orders": ("orders@a", "1")}


WRONG = {
    "no warehouse": ({"warehouse": "", "topic": "t"}, "warehouse"),
    "nothing named": ({}, "exactly one of topic, subscribe, subscribePattern, assign"),
    "two ways": ({"topic": "a", "subscribe": "b"}, "not topic and subscribe"),
    "no topic": ({"subscribe": " , "}, "at least one topic"),
    "bad pattern": ({"subscribePattern": "("}, "regular expression"),
    "empty pattern": ({"subscribePattern": ""}, "empty"),
    "assign is no JSON": ({"assign": "orders"}, "JSON"),
    "assign without lists": ({"assign": '{"a": "b"}'}, "JSON like"),
    "assign of nothing": ({"assign": '{"a": []}'}, "at least one partition"),
    "misspelt": ({"topic": "t", "startingOffset": "earliest"}, "did you mean startingOffsets"),
    "a path": ({"topic": "t", "path": "/x"}, "topics have no paths"),
    "a time of Delta": ({"topic": "t", "timestampAsOf": "2026-01-31"}, "with the option asOfTime"),
    "a version of Delta": ({"topic": "t", "versionAsOf": "1"}, "with the option asOfOffset"),
    "start at the end": ({"topic": "t", "startingOffsets": "latest"}, "cannot be latest"),
    "start at the end of one": ({"topic": "t", "startingOffsets": '{"t": {"0": -1}}'}, "cannot be latest"),
    "end at the start": ({"topic": "t", "endingOffsets": "earliest"}, "cannot be earliest"),
    "end at the start of one": ({"topic": "t", "endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
    "offset below all": ({"topic": "t", "startingOffsets": '{"t": {"0": -3}}'}, "from -2 on"),
    "offset is text": ({"topic": "t", "startingOffsets": '{"t": {"0": "1"}}'}, "whole numbers"),
    "offset beyond long": ({"topic": "t", "startingOffsets": '{"t": {"0": 9223372036854775808}}'}, "whole numbers"),
    "offsets are a list": ({"topic": "t", "endingOffsets": "[1]"}, "JSON object"),
    "time with a sign": ({"topic": "t", "startingTimestamp": "-1"}, "milliseconds"),
    "time is text": ({"topic": "t", "endingTimestamp": "now"}, "milliseconds"),
    "no partitions": ({"topic": "t", "minPartitions": "0"}, "from 1 on"),
    "flag": ({"topic": "t", "includeHeaders": "1"}, "true or false"),
    "row format": ({"topic": "t", "rowFormat": "avro"}, "message, kafka"),
    "strategy": ({"topic": "t", "startingOffsetsByTimestampStrategy": "first"}, "error, latest"),
}


@pytest.mark.parametrize("name", WRONG)
def test_spark_1_a_wrong_option_is_refused_by_name(name: str) -> None:
    options, told = WRONG[name]
    with pytest.raises(Refused) as caught:
        _parse(**options)
    assert told in caught.value.detail
    assert caught.value.code == "invalid_option"
    assert caught.value.field


def _stream(**options: str) -> ReadOptions:
    return parse_options({"topic": "t", **options}, warehouse="w", mode=Mode.STREAM)


def test_spark_02_a_stream_has_its_own_defaults_and_limits() -> None:
    read = _stream(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="5", maxTriggerDelay="2m", group="g")
    assert read.start.everywhere == LATEST
    assert read.limits == TriggerLimits(messages_max=10, messages_min=5, delay_ms_max=120_000)
    assert read.group == "g"
    assert _stream().limits == TriggerLimits(delay_ms_max=900_000)
    assert _stream(startingOffsets='{"t": {"0": -1}}').start.of("t", ("t@a", "0")) == LATEST


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: cannot be given to a stream"),
        ({"endingTimestamp": "5"}, "endingTimestamp: cannot be given to a stream"),
        ({"asOfTime": "5"}, "asOfTime: cannot be given to a stream"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger: .*must not be greater"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: must be a duration"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: must be a whole number"),
        ({"group": "no/slash"}, "group: is not a valid group name"),
    ],
)
def test_spark_02_what_a_stream_cannot_have_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        _stream(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"asOfOffset": "5", "asOfTime": "5"}, "asOfOffset: contradicts asOfTime"),
        ({"asOfTime": "5", "endingOffsets": "latest"}, "asOfTime: contradicts endingOffsets"),
        ({"asOfTime": "2026-01-31T12:00:00"}, "time with its zone"),
        ({"asOfOffset": "-1"}, "asOfOffset: must be a JSON object"),
        ({"group": "g"}, "group: is for streams"),
        ({"columns": "offset,offset"}, "columns, each once"),
    ],
)
def test_spark_04_what_a_batch_read_cannot_have_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        parse_options({"topic": "t", **options}, warehouse="w")


def test_spark_04_a_time_is_exact_to_the_microsecond() -> None:
    read = parse_options({"topic": "t", "asOfTime": "1970-01-01T00:00:01.000002+00:00"}, warehouse="w")
    assert (read.end.by_time, read.end.everywhere, read.as_of) == (True, 1_000_002, True)
    assert parse_options({"topic": "t", "asOfTime": "7"}, warehouse="w").end.everywhere == 7_000

"""Names of topics, groups, brokers and partitions, and their folders (SPEC MODEL-1, MODEL-5)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltamq.mq.errors import Refused
from deltamq.mq.limits import FOLDER_LENGTH_MAX
from deltamq.mq.names import (
    PartitionName,
    check_broker,
    check_client_topic,
    check_group,
    check_topic,
    decode_path,
    encode_path,
    is_system,
    partition_name,
    split_member,
)

LEGAL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._%|-"
legal_names = st.text(LEGAL, min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
# Anything that UTF-8 can hold: surrogates are not text.
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)

WRONG_SHAPE = ["", "a" * 256, ".", ".."]
WRONG_SIGNS = ["../etc", "a/b", "a\\b", "a b", "a\n", "a\x00", "é", "订单", "a@b", "a#1", "~41"]
HOSTILE = [*WRONG_SHAPE, "a" * 250, *WRONG_SIGNS]
#: What groups have no more than others: `@` marks a client, `*` patterns, and some signs cannot be seen.
NO_GROUPS = ["../etc", "a/b", "a\n", "a\x00", "a\x7f", "a\x85", "a@b", "a*", "\u202ea", "a\u200b", "\ud800"]


@given(legal_names)
@example("a")
@example("a" * 249)
def test_model_5_legal_names_are_returned_unchanged(name: str) -> None:
    assert check_topic(name) == name
    assert check_group(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_model_5_other_names_are_refused_and_the_field_is_named(name: str) -> None:
    with pytest.raises(Refused) as topic:
        check_topic(name)
    assert (topic.value.code, topic.value.field, topic.value.status) == ("invalid_topic_name", "topic", 400)


@pytest.mark.parametrize("name", [*WRONG_SHAPE, *NO_GROUPS])
def test_model_5_what_is_no_name_of_a_group_is_refused(name: str) -> None:
    with pytest.raises(Refused) as group:
        check_group(name)
    assert (group.value.code, group.value.field) == ("invalid_group_name", "group")
    assert not name or split_member(f"{name}@client") is None or name in (".", "..", "a@b")


@pytest.mark.parametrize("name", ["a b", "app:worker#1", "größe", "订单", "a\\b", "~41", "a" * 255])
def test_model_5_groups_are_called_what_kafkas_clients_call_them(name: str) -> None:
    assert check_group(name) == name
    assert split_member(name) is None and split_member(f"{name}@client") == (name, "client")
    assert len(encode_path(name)) <= FOLDER_LENGTH_MAX


@pytest.mark.parametrize("name", [*HOSTILE, "a%b", "a|b"])
def test_broker_names_are_host_like(name: str) -> None:
    with pytest.raises(Refused) as refused:
        check_broker(name)
    assert refused.value.code == "invalid_broker_name"


@pytest.mark.parametrize("name", ["%RETRY%g_t", "%DLQ%g", "rmq_sys_REVIVE_LOG_c", "sys/meta"])
def test_model_5_clients_cannot_use_system_names(name: str) -> None:
    assert is_system(name)
    with pytest.raises(Refused) as refused:
        check_client_topic(name)
    assert refused.value.code == "system_name"


def test_kafka_30_no_topic_is_called_as_the_one_of_committed_offsets() -> None:
    with pytest.raises(Refused) as refused:
        check_client_topic("__consumer_offsets")
    assert refused.value.code == "system_name"
    assert check_client_topic("__consumer_offsets2") and check_group("__consumer_offsets")


@pytest.mark.parametrize("name", ["orders", "RETRY%g", "%retry%g", "rmq_sy", "sysmeta", "a%RETRY%"])
def test_model_5_names_that_only_resemble_system_names_are_free(name: str) -> None:
    assert not is_system(name)
    assert check_client_topic(name) == name


@given(name=st.text(LEGAL + "#@", min_size=1, max_size=40), broker=st.text(LEGAL, min_size=1, max_size=20))
@example(name="order.book#1", broker="broker-a")
@example(name="with@sign", broker="b")
def test_model_1_a_partition_is_written_name_at_broker(name: str, broker: str) -> None:
    assert PartitionName.parse(partition_name(name, broker)) == (name, broker)


@pytest.mark.parametrize("partition", ["", "orders", "orders@", "@broker-a", "@"])
def test_model_1_a_partition_without_both_parts_is_refused(partition: str) -> None:
    with pytest.raises(Refused) as refused:
        PartitionName.parse(partition)
    assert (refused.value.code, refused.value.field) == ("invalid_partition_name", "partition")


@given(any_text)
@example("..")
@example("_delta_log")
@example("~2E")
@example("a/../../b")
@example("\x00")
def test_a_folder_comes_back_as_its_name(name: str) -> None:
    folder = encode_path(name)
    # Only a name that does not fit a folder is cut, and then nothing is made up.
    assert decode_path(folder) == (None if len(folder) == FOLDER_LENGTH_MAX and "~h" in folder else name)


@pytest.mark.parametrize("name", ["|" * 249, "%" * 249, "x" * 121])
def test_model_5_every_legal_name_fits_a_folder(name: str) -> None:
    assert check_topic(name) == name
    assert len(encode_path(name)) <= FOLDER_LENGTH_MAX
    assert encode_path(name) != encode_path(name[:-1])


@given(any_text, any_text)
@example("~2E", ".")
@example("%2E", ".")
@example("_a", "~5Fa")
def test_no_two_names_share_a_folder(one: str, other: str) -> None:
    assert (encode_path(one) == encode_path(other)) == (one == other)


@given(any_text)
@example(".")
@example("..")
@example(".hidden")
@example("_temporary")
def test_a_folder_is_never_hidden_and_never_leaves_its_parent(name: str) -> None:
    folder = encode_path(name)
    assert re.fullmatch(r"[A-Za-z0-9~-][A-Za-z0-9._~-]*", folder)

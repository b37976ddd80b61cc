"""The POP consumer: pops, handlers, acknowledgements."""

from __future__ import annotations

from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pop.connection import PopConnection
from deltamq.mq.client.pop.consumer import ConsumerClosed, PopConsumer
from deltamq.mq.client.pop.consumer_life import CLOSE_TIMEOUT_S, ConsumerLife
from deltamq.mq.client.pop.consumer_settings import OrderlyManner, check_handler, checked_topics
from deltamq.mq.client.pop.consumer_stats import ConsumerCounters, ConsumerStats
from deltamq.mq.client.pop.hook import CONSUME_TIMEOUT_S, Ending, HandlerEnd, call_hook, ending_of
from deltamq.mq.client.pop.wire import PopAsk, parse_batch

__all__ = [
    "CLOSE_TIMEOUT_S",
    "CONSUME_TIMEOUT_S",
    "ConsumerClosed",
    "ConsumerCounters",
    "ConsumerLife",
    "ConsumerStats",
    "Ending",
    "HandlerEnd",
    "OrderlyManner",
    "PopAsk",
    "PopClient",
    "PopConnection",
    "PopConsumer",
    "call_hook",
    "check_handler",
    "checked_topics",
    "ending_of",
    "parse_batch",
]

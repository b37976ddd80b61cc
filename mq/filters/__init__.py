"""Message filters as SQL92 conditions: `region = 'eu' AND amount > 5` (SPEC CONS-9)."""

from __future__ import annotations

from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Comparison,
    Condition,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Sign,
    Truth,
    Value,
    ValueKind,
    fields_of,
    kind_of,
)
from deltamq.mq.filters.evaluation import NUMBER_PATTERN, Fields, evaluate, value_of
from deltamq.mq.filters.like import Pattern, Wildcard
from deltamq.mq.filters.parser import parse_filter

__all__ = [
    "NUMBER_PATTERN",
    "And",
    "Arithmetic",
    "Comparison",
    "Condition",
    "Field",
    "Fields",
    "Header",
    "In",
    "IsNull",
    "Like",
    "Not",
    "Operator",
    "Or",
    "Pattern",
    "Sign",
    "Truth",
    "Value",
    "ValueKind",
    "Wildcard",
    "evaluate",
    "fields_of",
    "kind_of",
    "parse_filter",
    "value_of",
]

"""The filter of a request: tags, and a SQL condition (SPEC CONS-3, CONS-9)."""

from __future__ import annotations

import pyarrow as pa

from deltamq.mq.errors import Unprocessable
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import TAG_BYTES_MAX, TAG_FILTER_TAGS_MAX
from deltamq.mq.names import is_tag
from deltamq.tables.row_filter import MessageFilter


def message_filter(tags: str | None, filter: str | None) -> MessageFilter | None:
    """Return the filter of `*` or `TagA || TagB`, and of a SQL condition; None if it lets every message pass.

    Raises
    ------
    Unprocessable
        `invalid_tag_filter` or `invalid_filter`; `field` is `tags` or `filter`.
    """
    names = _tags_of(tags)
    condition = None if filter is None else parse_filter(filter)
    return None if names is None and condition is None else MessageFilter(tags=names, condition=condition)


def _tags_of(text: str | None) -> pa.Array | None:
    """Return the tags that a text names; None for all."""
    if text is None or text.strip() == "*":
        return None
    tags = [tag.strip() for tag in text.split("||")]
    if not all(map(is_tag, tags)):
        detail = "tags: write * or TagA||TagB; a tag has no spaces and none of * | & ,"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags")
    if len(tags) > TAG_FILTER_TAGS_MAX:
        detail = f"tags: at most {TAG_FILTER_TAGS_MAX} tags"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_FILTER_TAGS_MAX})
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        detail = f"tags: a tag has at most {TAG_BYTES_MAX} bytes"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_BYTES_MAX})
    return pa.array(tags, pa.string())

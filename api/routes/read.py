"""The tag filter of requests that read messages."""

from __future__ import annotations

import pyarrow as pa

from mq.errors import Unprocessable
from mq.limits import TAG_BYTES_MAX, TAG_FILTER_TAGS_MAX

__all__ = ["parse_tags"]


def parse_tags(text: str | None) -> pa.Array | None:
    """Return the tags of a filter `*` or `TagA || TagB` (SPEC CONS-3); None for every message."""
    if text is None or text.strip() == "*":
        return None
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or any(tag == "*" or "|" in tag for tag in tags):
        raise Unprocessable("tags: write * or TagA||TagB", code="invalid_tag_filter", field="tags")
    if len(tags) > TAG_FILTER_TAGS_MAX:
        detail = f"tags: at most {TAG_FILTER_TAGS_MAX} tags"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_FILTER_TAGS_MAX})
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        detail = f"tags: a tag has at most {TAG_BYTES_MAX} bytes"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_BYTES_MAX})
    return pa.array(tags, pa.string())

"""The SQL filter of a fetch, a pop or a subscription (SPEC CONS-9)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from deltamq.mq.limits import FILTER_CHARS_MAX

FILTER_DESCRIPTION: Final = (
    "A SQL92 condition over headers, `key` and `tag`, for example `region = 'eu' AND amount > 5`. Messages that it is"
    " not true for count as consumed."
)
#: The service refuses longer ones with the place of the fault, as all that are wrong.
FilterText = Annotated[
    str, Meta(description=FILTER_DESCRIPTION, extra_json_schema={"minLength": 1, "maxLength": FILTER_CHARS_MAX})
]

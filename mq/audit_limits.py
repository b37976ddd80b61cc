"""Limits of the audit, each with its unit and its reason."""

from __future__ import annotations

from typing import Final

#: Random bytes of the id of an act, or of a row of refusals.
ACT_ID_BYTES: Final = 8
#: Bytes of JSON of what was asked, and of the state before and after an act; more is recorded as its size.
SHOWN_BYTES_MAX: Final = 64 * 1024
#: Characters of the detail of a refusal.
DETAIL_LENGTH_MAX: Final = 512
#: Resources of one act whose state is recorded; an act has one, seldom two.
RESOURCES_MAX: Final = 4
#: Rows of refusals that a process counts apart, minutes that are not stored yet included. What is beyond is counted
#: without principal and call.
REFUSALS_COUNTED_MAX: Final = 1_000
#: Minutes of refusals that are kept while they cannot be stored.
REFUSAL_MINUTES_MAX: Final = 60
#: Ends of acts that could not be stored and are tried again; acts are refused while there are as many.
ENDS_WAITING_MAX: Final = 1_000
#: Acts in one answer, by default and at most, and rows that are read beyond the last of them for their ends.
ACTS_DEFAULT: Final = 100
ACTS_MAX: Final = 1_000
ENDS_LOOKED_MAX: Final = 20_000

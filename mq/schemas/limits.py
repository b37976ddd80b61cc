"""Limits of schemas and of typed topics, with their units."""

from __future__ import annotations

from typing import Final

from deltamq.mq.limits import COMMIT_BYTES_MAX, MIB

# The registry (SPEC TYPE-24): all of it is in the metadata of every process, and in each snapshot.
SUBJECT_LENGTH_MAX: Final = 255
#: A schema with all that it refers to.
SCHEMA_BYTES_MAX: Final = 1 * MIB
SCHEMA_REFERENCES_MAX: Final = 100
SCHEMA_FIELDS_MAX: Final = 10_000
SCHEMA_DEPTH_MAX: Final = 100
#: Versions of all subjects, and the characters of all schemas.
SCHEMA_VERSIONS_MAX: Final = 20_000
REGISTRY_BYTES_MAX: Final = 32 * MIB

# A typed topic's columns (SPEC TYPE-12): each costs memory for each row, whatever the row has, and a place in each
# file.
TYPED_COLUMNS_MAX: Final = 1_000
TYPED_DEPTH_MAX: Final = 32
# One body's elements of lists and maps, times the columns below each: an element may take a byte of a body, and eight
# bytes of each of its columns.
TYPED_CELLS_MIN: Final = 1_024
TYPED_CELLS_PER_BYTE_MAX: Final = 16

assert REGISTRY_BYTES_MAX <= COMMIT_BYTES_MAX, "a snapshot of the metadata is one message"
assert TYPED_DEPTH_MAX <= SCHEMA_DEPTH_MAX

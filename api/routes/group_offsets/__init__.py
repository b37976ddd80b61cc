"""A group's offsets in one topic over REST.

calls --> offsets: here, or in all clusters of a global topic --> views of lanes, commits, resets
"""

from __future__ import annotations

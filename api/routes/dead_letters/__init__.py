"""A group's dead letters over REST: list, count, send back, delete.

calls --> chosen: which are asked for, page by page --> `api.sending`: their logs and marks
"""

from __future__ import annotations

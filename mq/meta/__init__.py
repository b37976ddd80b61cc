"""The events of the metadata log and their fold: topics, groups, brokers, moved keys, online clients, retention."""

from __future__ import annotations

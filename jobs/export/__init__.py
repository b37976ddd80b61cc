"""Typed export of topics, replay of dead letters, reset of offsets: called directly or scheduled."""

from __future__ import annotations

from deltamq.jobs.export.export import export_topic, replay_quarantine
from deltamq.jobs.export.replay import Chosen, replay_dead_letters
from deltamq.jobs.export.reset import reset_offsets, target_of

__all__ = ["Chosen", "export_topic", "replay_dead_letters", "replay_quarantine", "reset_offsets", "target_of"]

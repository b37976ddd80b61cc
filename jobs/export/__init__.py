"""Typed export of topics, replay of dead letters, reset of offsets: called directly or scheduled."""

from __future__ import annotations

from deltamq.jobs.export.definition import (
    Definition,
    definition_of,
    definitions,
    read_definition,
    remove_definition,
    save,
)
from deltamq.jobs.export.export import check_definition, export_topic, replay_quarantine, run_export
from deltamq.jobs.export.plan import Plans
from deltamq.jobs.export.replay import Chosen, replay_dead_letters
from deltamq.jobs.export.reset import reset_offsets, target_of
from deltamq.jobs.export.schedules import (
    KINDS,
    AnyScheduled,
    ScheduledReplay,
    ScheduledReset,
    read_state,
    remove_scheduled,
    save_scheduled,
    scheduled,
)

__all__ = [
    "KINDS",
    "AnyScheduled",
    "Chosen",
    "Definition",
    "Plans",
    "ScheduledReplay",
    "ScheduledReset",
    "check_definition",
    "definition_of",
    "definitions",
    "export_topic",
    "read_definition",
    "read_state",
    "remove_definition",
    "remove_scheduled",
    "replay_dead_letters",
    "replay_quarantine",
    "reset_offsets",
    "run_export",
    "save",
    "save_scheduled",
    "scheduled",
    "target_of",
]

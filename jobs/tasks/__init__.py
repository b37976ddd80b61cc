"""Work in the Python workers of Spark: one item of work is one task, and DeltaMQ's errors reach the driver."""

from __future__ import annotations

from deltamq.jobs.tasks.checkpoint_claims import CheckpointClaims, Claimant, forget_claims
from deltamq.jobs.tasks.connect import cloned_session, closed_at_exit, is_connect, local_checkpoint
from deltamq.jobs.tasks.first_lines import errors_in_one_line, in_one_line, sentence_of
from deltamq.jobs.tasks.known_outcome import until_known
from deltamq.jobs.tasks.query_values import agreed, agreed_rows, current_query, forget_queries
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.jobs.tasks.tasks import frame_of_tasks, in_tasks, run_in_tasks, task_failpoint
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import absolute, close_warehouses, state_of, warehouse_of
from deltamq.jobs.tasks.worker import keep_imports

__all__ = [
    "CheckpointClaims",
    "Claimant",
    "absolute",
    "agreed",
    "agreed_rows",
    "cloned_session",
    "close_warehouses",
    "closed_at_exit",
    "current_query",
    "errors_in_one_line",
    "errors_of_tasks",
    "forget_claims",
    "forget_queries",
    "frame_of_tasks",
    "in_one_line",
    "in_tasks",
    "is_connect",
    "keep_imports",
    "local_checkpoint",
    "run_in_tasks",
    "sentence_of",
    "state_of",
    "storage",
    "task_failpoint",
    "until_known",
    "warehouse_of",
]

"""Groups and POP: lanes, pops, handles, progress, retries, delayed messages."""

from __future__ import annotations

from deltamq.api.queue.delays import Delays, split_shares
from deltamq.api.queue.group_start import begin, bounds_at
from deltamq.api.queue.handle_calls import Disposition, HandleCalls
from deltamq.api.queue.lane_pops import LanePops
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.logs import Dying
from deltamq.api.queue.moved_progress import HELD_BACK_S, MovedProgress
from deltamq.api.queue.overdue import settle_overdue
from deltamq.api.queue.pop_requests import Taken, TopicPopRequest
from deltamq.api.queue.popped import ARROW_TYPE, arrow_answer, json_answer, shown
from deltamq.api.queue.popper import Popped, Popper
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.api.queue.waiting import Waiting

__all__ = [
    "ARROW_TYPE",
    "HELD_BACK_S",
    "Delays",
    "Disposition",
    "Dying",
    "HandleCalls",
    "LanePops",
    "Lanes",
    "MovedProgress",
    "Popped",
    "Popper",
    "SeenClients",
    "Taken",
    "TopicPopRequest",
    "Waiting",
    "arrow_answer",
    "begin",
    "bounds_at",
    "json_answer",
    "settle_overdue",
    "shown",
    "split_shares",
]

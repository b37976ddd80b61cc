"""Groups and POP: lanes, pops, handles, progress, retries, delayed messages."""

from __future__ import annotations

from api.queue.delays import Delays, split_shares
from api.queue.group_start import begin, bounds_at
from api.queue.handle_calls import Disposition, HandleCalls
from api.queue.lane_pops import LanePops
from api.queue.lanes import Lanes
from api.queue.logs import Dying
from api.queue.moved_progress import HELD_BACK_S, MovedProgress
from api.queue.overdue import settle_overdue
from api.queue.pop_requests import Taken, TopicPopRequest
from api.queue.popped import ARROW_TYPE, arrow_answer, json_answer, shown
from api.queue.popper import Popped, Popper
from api.queue.seen_clients import SeenClients
from api.queue.waiting import Waiting

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

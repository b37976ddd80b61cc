"""How long and how often to measure."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["LONG", "NORMAL", "QUICK", "Effort"]


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a run. `windows` repeats of `window_s` seconds follow a warm-up of `warmup_s`."""

    name: str
    warmup_s: float
    window_s: float
    windows: int
    #: Waits at most this long before each window for other programs to become quiet.
    quiet_s: float
    #: Messages stored before history is fetched.
    history_messages: int
    #: Where the flatness of commit, open and fetch is looked at: commits of one row, and messages in large appends.
    flat_commits: tuple[int, ...]
    flat_messages: tuple[int, ...]
    #: Unacknowledged messages that are due at once.
    storm_messages: int
    #: Share of the flight events that is stored.
    flights_share: float
    soak_s: float
    #: Whether Spark is started at all.
    spark: bool
    #: Warm-up, window and repeats of the peers' scripts.
    peer_warmup_s: float
    peer_window_s: float
    peer_repeats: int
    #: Free disk space that a whole run wants.
    disk_gib: float


QUICK: Final = Effort(
    name="quick",
    warmup_s=0.1,
    window_s=0.2,
    windows=1,
    quiet_s=0,
    history_messages=200_000,
    flat_commits=(100, 300),
    flat_messages=(100_000, 300_000),
    storm_messages=20_000,
    flights_share=0.02,
    soak_s=1,
    spark=False,
    peer_warmup_s=1,
    peer_window_s=1,
    peer_repeats=1,
    disk_gib=1,
)
NORMAL: Final = Effort(
    name="normal",
    warmup_s=1.5,
    window_s=2,
    windows=5,
    quiet_s=20,
    history_messages=8_000_000,
    flat_commits=(1_000, 2_000, 5_000, 10_000, 20_000),
    flat_messages=(1_000_000, 10_000_000),
    storm_messages=1_000_000,
    flights_share=1,
    soak_s=30,
    spark=True,
    peer_warmup_s=6,
    peer_window_s=4,
    peer_repeats=3,
    disk_gib=25,
)
LONG: Final = Effort(
    name="long",
    warmup_s=3,
    window_s=5,
    windows=7,
    quiet_s=60,
    history_messages=20_000_000,
    flat_commits=(1_000, 10_000, 100_000, 1_000_000),
    flat_messages=(1_000_000, 10_000_000, 100_000_000),
    storm_messages=1_000_000,
    flights_share=1,
    soak_s=3_600,
    spark=True,
    peer_warmup_s=12,
    peer_window_s=5,
    peer_repeats=3,
    disk_gib=60,
)

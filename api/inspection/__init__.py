"""What operators look at: messages by what is in them, what is in flight, what waits, what was."""

from __future__ import annotations

from typing import Final

from deltamq.api.inspection import (
    applied,
    delayed,
    deliveries,
    erasures,
    exports,
    history,
    in_flight,
    latest,
    quarantine,
    retention,
    retries,
    search,
)

#: The routers, in the order of the OpenAPI document.
INSPECTION_ROUTERS: Final = tuple(
    module.router
    for module in (
        search,
        latest,
        quarantine,
        deliveries,
        delayed,
        in_flight,
        retries,
        history,
        retention,
        exports,
        erasures,
        applied,
    )
)

"""Whether a warehouse is guarded is a fact of the warehouse, not of one process's settings (SPEC SEC-44).

`deltamq auth init` makes the first principal; from then on the metadata says who may do what, and a process that asks
nobody who they are would be a door beside all others.
"""

from __future__ import annotations

from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.fold import Meta


def is_guarded(meta: Meta) -> bool:
    """Whether callers of this warehouse have to show who they are."""
    return bool(meta.auth.principals)


def guarded_warehouse() -> Unavailable:
    """Return the error of a process that checks nobody, in a guarded warehouse."""
    return Unavailable(
        "this warehouse is guarded (`deltamq auth init` was run): a process without service.auth may not serve it; set "
        "DELTAMQ_SERVICE_AUTH=true and the cluster's service.cluster_secret, as its other processes have them",
        code="warehouse_guarded",
        field="service.auth",
    )

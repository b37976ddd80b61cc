"""Who may do what, over REST: principals and keys, access rules and quotas (SPEC SEC-1 to SEC-3, SEC-9, SEC-19)."""

from __future__ import annotations

from typing import Final

from deltamq.api.principals import access_rules, allowed, principals

#: The routers, in the order of the OpenAPI document.
AUTH_ROUTERS: Final = (principals.router, access_rules.router, allowed.router)

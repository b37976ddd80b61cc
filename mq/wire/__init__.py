"""The messages of the REST contract, as the service and the clients read and write them."""

from __future__ import annotations

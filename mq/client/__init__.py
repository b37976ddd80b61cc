"""The Python SDK. It speaks HTTP and depends on no layer of DeltaMQ but `mq`; users import it from `deltamq`."""

from __future__ import annotations

"""The protocol and the clients. The core is pure: state in, events in, decisions out; time is passed in."""

from __future__ import annotations

if __name__ != "deltamq.mq":
    raise ImportError("import deltamq.mq: the folder is a part of that package, and no package of its own")

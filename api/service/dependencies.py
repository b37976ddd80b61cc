"""What FastAPI gives to the function of a call: the running service, and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from deltamq.api.auth.caller import Caller, caller_of
from deltamq.api.service.service import Service
from deltamq.mq.errors import Unavailable


async def _service_of(request: Request) -> Service:
    service: Service | None = request.app.state.service
    if service is None:
        raise Unavailable("the service is starting or stopping", code="starting")
    return service


async def _asking(request: Request) -> Caller:
    return caller_of(request.scope)


#: The running service.
Running = Annotated[Service, Depends(_service_of)]
#: The sender of the request.
Asking = Annotated[Caller, Depends(_asking)]

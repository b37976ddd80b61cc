"""The service processes of one cluster: which host to ask, and which one instead if it does not answer.

    URLs that were given ──► GET /v1/cluster ──► addresses of all hosts, and the host of each broker
                                   ▲
                                   └── every 30 s, and after a failure

Any host answers any request: it serves it, or forwards it to the host that must. So the view kept here may be stale;
asking the right host only saves a hop. A host that failed is avoided for a while, if there is another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

import msgspec

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.credentials import Credentials
from deltamq.mq.client.http.endpoint import Endpoint, Query, Tls
from deltamq.mq.client.http.tokens import TOKEN_UNAVAILABLE, Token
from deltamq.mq.client.shells.blocking_transport import CONNECT_FAILED, CONNECTION_LOST, NO_ANSWER
from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.client.shells.shell import Answer, Body, Shell
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.client.tracing.tracing import Tracing
from deltamq.mq.errors import DeltaMQError, Refused

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import TracerProvider

log = logging.getLogger("deltamq.client")

#: The role of heartbeats, beside the brokers' names.
META: Final = "/meta"

#: Maximum age of the view, and minimum time between two requests for it after failures.
_AGE_S: Final = 30.0
_AGAIN_S: Final = 0.5
_ASK_TIMEOUT_S: Final = 3.0
#: Time for which a failed host is avoided: 1 s, 2, 4, ... at most 30.
_AVOID_S: Final = Backoff(1.0, 30.0)

#: Codes of failures of the host itself.
_NO_HOST: Final = frozenset({CONNECT_FAILED, CONNECTION_LOST, NO_ANSWER})
#: Codes that say that the host works, but the role has moved or is about to.
_MOVED: Final = frozenset({"not_owner", "lease_lost", "broker_unavailable"})
_UNAVAILABLE: Final = 503


class _Role(msgspec.Struct):
    """A broker or the meta role, and the host that has it."""

    broker: str = META
    roles: tuple[str, ...] = ("meta",)
    host: str | None = None
    address: str | None = None
    online: bool = True


class _Host(msgspec.Struct):
    host: str
    address: str


class _Cluster(msgspec.Struct):
    brokers: list[_Role]
    hosts: list[_Host] = []
    host: str | None = None
    meta: _Role | None = None


class Hosts:
    """The hosts of one cluster; with threads, safe for any number of them.

    Parameters
    ----------
    url
        One service process, or several, as a list or separated by commas; any of them is enough.
    token
        Sent with every request to these processes, and to the others of the cluster that they name; see `Credentials`.
    ca, cert, key, ssl_context
        What is trusted and shown at `https://` URLs; see `Tls`.
    tracer_provider
        Makes the spans of this client; see `Tracing`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: Token | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ssl_context: SSLContext | None = None,
        agent: str = "deltamq",
        shell: Shell | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.shell = ThreadShell() if shell is None else shell
        tls = Tls(ca, cert, key, ssl_context)
        self.tracing = Tracing(tracer_provider)
        self._endpoint_at = partial(
            Endpoint,
            shell=self.shell,
            credentials=Credentials(token, self.shell),
            tls=tls,
            agent=agent,
            tracing=self.tracing,
        )
        self._seeds = [self._endpoint_at(address) for address in _urls(url)]
        self.tracing.at(self._seeds[0].host, self._seeds[0].port)
        self.url = self._seeds[0].url
        self._lock = threading.Lock()
        #: Hosts learned from the cluster, by address.
        self._learned: dict[str, Endpoint] = {}
        #: Ids of the hosts that answered at each given URL: a URL with several is a load balancer.
        self._answered_as: dict[Endpoint, set[str]] = {}
        self._owners: Mapping[str, Endpoint] = {}
        self._all: Sequence[Endpoint] = tuple(self._seeds)
        self._avoided: dict[Endpoint, float] = {}
        self._failures: dict[Endpoint, int] = {}
        #: Maximum age of the view, in seconds; None until `follow` is called.
        self._age_s: float | None = None
        self._closed = False
        self._asking = False
        self._asked_at = float("-inf")
        #: Grows when the view changes.
        self.epoch = 0
        in_child(self._renew)

    def __repr__(self) -> str:
        return f"Hosts({[endpoint.url for endpoint in self._all]!r})"

    def _renew(self) -> None:
        """In a child of a fork: the parent's threads, which hold the lock or fetch, do not run here."""
        self._lock, self._asking = threading.Lock(), False

    def follow(self, age_s: float = _AGE_S) -> None:
        """Learn about the cluster's other hosts from now on, in the background, beginning after the next success.

        A view older than `age_s` is fetched again after the next answer, or when `keep_fresh` is called.
        """
        self._age_s = age_s

    @property
    def are_several(self) -> bool:
        """True if more than one host is known."""
        return len(self._all) > 1

    # Asking -----------------------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        *,
        role: str | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        timeout_s: float = 10.0,
    ) -> Answer:
        """Send one attempt to one host (see `Endpoint.call`); the next attempt may go to another host.

        Parameters
        ----------
        role
            The broker that the request concerns, or `META`; the request goes to its host, if that is known.
        """
        if self._closed:
            raise Refused("the client is closed; make another one", code="client_closed")
        endpoint = self.endpoint(role)
        try:
            answer = await endpoint.call(method, path, query=query, headers=headers, body=body, timeout_s=timeout_s)
        except DeltaMQError as error:
            self.failed(endpoint, error)
            raise
        self.answered(endpoint)
        return answer

    def endpoint(self, role: str | None = None) -> Endpoint:
        """Return the host to ask now: the one that has `role` if known, else the first one that is not avoided."""
        owner = None if role is None else self._owners.get(role)
        if not self._avoided:
            return owner or self._all[0]
        now = self.shell.now()
        with self._lock:
            wanted = self._all if owner is None else (owner, *self._all)
            ends = {host: self._avoided.get(host, 0.0) for host in wanted}
        return next((host for host, end in ends.items() if end <= now), min(ends, key=ends.__getitem__))

    def of(self, brokers: Collection[str], *, even_avoided: bool = False) -> list[Endpoint]:
        """Return the hosts of these brokers, each once; any host for a broker whose host is unknown, or avoided.

        With `even_avoided`, avoided hosts are returned, too.
        """
        known = self._owners if even_avoided else {}
        owners = dict.fromkeys(known.get(broker) or self.endpoint(broker) for broker in sorted(brokers))
        return list(owners) or [self.endpoint()]

    def failed(self, endpoint: Endpoint, error: DeltaMQError) -> None:
        """Note a failed attempt: forget the host's roles if they moved, avoid the host if it is in trouble."""
        if error.code in _MOVED:
            with self._lock:
                # Any host knows better than this stale view.
                self._owners = {role: host for role, host in self._owners.items() if host is not endpoint}
        elif error.code in _NO_HOST or error.status == _UNAVAILABLE:
            if error.code == TOKEN_UNAVAILABLE:
                return  # the request was never sent
            self._avoid(endpoint)
        else:
            return
        self._look_again(_AGAIN_S)

    def _avoid(self, endpoint: Endpoint) -> None:
        with self._lock:
            if len(self._all) == 1:
                return
            failures = self._failures[endpoint] = self._failures.get(endpoint, 0) + 1
            rest_s = _AVOID_S.after(failures)
            self._avoided[endpoint] = self.shell.now() + rest_s
        log.info("event=host_avoided url=%s for_s=%.0f", endpoint.url, rest_s)

    def answered(self, endpoint: Endpoint) -> None:
        """Note a successful attempt: the host is no longer avoided."""
        if self._failures:
            with self._lock:
                self._failures.pop(endpoint, None)
                self._avoided.pop(endpoint, None)
        self.keep_fresh()

    # The view ---------------------------------------------------------------------------------------------------

    def keep_fresh(self) -> None:
        """Fetch the view, in the background, if it is too old."""
        if self._age_s is not None and self.shell.now() >= self._asked_at + self._age_s:
            self._look_again(self._age_s)

    def _look_again(self, age_s: float) -> None:
        """Fetch the view in the background, unless a fetch runs, or began less than `age_s` ago."""
        with self._lock:
            now = self.shell.now()
            if self._age_s is None or self._closed or self._asking or now < self._asked_at + age_s:
                return
            self._asking = True
            self._asked_at = now
        self.shell.spawn("deltamq-cluster", self._look_logged)

    async def _look_logged(self) -> None:
        try:
            await self.look()
        finally:
            with self._lock:
                self._asking = False

    async def look(self) -> bool:
        """Ask the hosts in turn until one describes the cluster; returns False if none does."""
        first = self.endpoint()
        for endpoint in dict.fromkeys((first, *self._all)):
            try:
                answer = await endpoint.call("GET", "/v1/cluster", timeout_s=_ASK_TIMEOUT_S)
                self._learn(endpoint, decode_as(answer.body, _Cluster))
            except (DeltaMQError, msgspec.MsgspecError) as error:
                log.info("event=cluster_unknown url=%s error=%s", endpoint.url, error)
            else:
                return True
        return False

    def _learn(self, asked: Endpoint, cluster: _Cluster) -> None:
        with self._lock:
            if self._closed:
                return
            roles = cluster.brokers if cluster.meta is None else [*cluster.brokers, cluster.meta]
            hosts = {role.host: role.address for role in roles if role.host is not None and role.address is not None}
            hosts |= {host.host: host.address for host in cluster.hosts}
            self._note_name(asked, cluster.host, hosts.keys())
            by_host = {host: self._reached(host, address) for host, address in hosts.items()}
            owners = {role.broker: by_host.get(role.host or "") for role in roles if role.online}
            # An answer without `meta` lists the role among the roles of a broker.
            owners.setdefault(META, next((owners.get(role.broker) for role in roles if "meta" in role.roles), None))
            known = {name: owner for name, owner in owners.items() if owner is not None}
            present = tuple(dict.fromkeys((*self._seeds, *(host for host in by_host.values() if host is not None))))
            if (known, present) != (self._owners, self._all):
                self._owners, self._all = known, present
                self.epoch += 1
            self._forget_gone(set(present))

    def _forget_gone(self, present: Collection[Endpoint]) -> None:
        """Drop the learned hosts that are gone, with their failures.

        They are not closed: a request may be under way. Their connections are closed when the last reference goes.
        """
        self._learned = {address: host for address, host in self._learned.items() if host in present}
        self._failures = {host: count for host, count in self._failures.items() if host in present}
        self._avoided = {host: end for host, end in self._avoided.items() if host in present}

    def _note_name(self, asked: Endpoint, host: str | None, present: Collection[str]) -> None:
        """Remember that the host with this id answers at this URL, and forget the ids of hosts that are gone."""
        if host is not None and asked in self._seeds:
            names = self._answered_as.setdefault(asked, set())
            names.intersection_update(present)
            names.add(host)

    def _reached(self, host: str, address: str) -> Endpoint | None:
        """Return the endpoint of a host: a given URL, if the host answers there, else its own address."""
        for seed, names in self._answered_as.items():
            if names == {host}:
                return seed
        wanted = address.rstrip("/")
        for seed in self._seeds:
            if seed.url == wanted:
                return seed
        if wanted not in self._learned:
            try:
                self._learned[wanted] = self._not_below(self._endpoint_at(wanted))
            except Refused:
                log.warning("event=host_address_invalid host=%r", host)
                return None
        return self._learned[wanted]

    def _not_below(self, learned: Endpoint) -> Endpoint:
        """Refuse a host without TLS if all given URLs have it: a token could be read on its way."""
        if learned.scheme != "https" and all(seed.scheme == "https" for seed in self._seeds):
            raise Refused(f"{learned.url} is not encrypted, unlike the given URL", code="invalid_url", field="url")
        return learned

    # The end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            self._closed = True
            endpoints = dict.fromkeys((*self._seeds, *self._learned.values()))
        for endpoint in endpoints:
            await endpoint.close()


def _urls(url: str | Sequence[str]) -> list[str]:
    urls = url.split(",") if isinstance(url, str) else list(url)
    wanted = [part.strip() for part in urls if part.strip()]
    if not wanted:
        raise Refused("at least one URL of the service is needed", code="invalid_url", field="url")
    return list(dict.fromkeys(wanted))

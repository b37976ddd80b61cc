"""The following of global topics' homes, while something else answers in their place (SPEC STATIC-19)."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.api.running import until
from tests.api.two_clusters import GlobalTopic, TwoClusters


class _Pages(http.server.BaseHTTPRequestHandler):
    """A load balancer without a server behind it."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        page = b"<html>Bad Gateway</html>"
        self.send_response(502)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def load_balancer(port: int) -> Iterator[type[_Pages]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield _Pages
        finally:
            server.shutdown()
            thread.join()


def test_static_19_a_page_of_a_load_balancer_ends_neither_the_following_of_a_home_nor_the_stop(tmp_path: Path) -> None:
    clusters = TwoClusters(tmp_path, service={"clusters_refresh_ms": 20})
    try:
        for name in ("east", "west"):
            clusters.start(name)
        # West may read the new topic from its home while that still hands it out, and is ahead of it then.
        until(lambda: GlobalTopic(clusters.east, "orders").create(2).status in (200, 201))
        clusters.stop("east")
        with load_balancer(clusters.ports["east"]) as pages:
            until(lambda: pages.asked >= 3)
            west = clusters.west.service
            clusters.stop("west")
        hosts = west.meta.now.brokers.hosts
        assert west.hosting.id not in hosts, "it has left the cluster, so that others need not wait for its lease"
    finally:
        for name in list(clusters._running):
            clusters.stop(name)

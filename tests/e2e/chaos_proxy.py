"""A TCP proxy between client and service that loses answers: it breaks the connection at a random byte of an answer.

Requests always reach the service whole, so the client cannot know whether they were applied (fault F15).
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading

__all__ = ["ChaosProxy"]


class ChaosProxy:
    """Forwards to `port`; each answer is lost with probability `loss`, from a random byte of it on."""

    def __init__(self, port: int, *, loss: float, seed: int) -> None:
        self._target = ("127.0.0.1", port)
        self._loss = loss
        self._draw = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> ChaosProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A shutdown wakes the accept; a plain close would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                service = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for sock in (client, service):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._requests, args=(client, service), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, service), daemon=True).start()

    def _requests(self, client: socket.socket, service: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                service.sendall(data)
        _close(client, service)

    def _answers(self, client: socket.socket, service: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := service.recv(1 << 16):
                if self._draw.random() < self._loss:
                    self.lost += 1
                    client.sendall(data[: self._draw.randrange(len(data))])
                    break
                client.sendall(data)
        _close(client, service)


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

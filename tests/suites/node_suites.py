"""Small programs of ours for clients in JavaScript, whose own tests are in no registry."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.suites.broker import Broker
from tests.suites.cache import Cache, tool
from tests.suites.outcomes import Outcome
from tests.suites.playing import output_of

__all__ = ["play_kafkajs"]

_PROGRAMS: Final = Path(__file__).parent / "programs"
_KAFKAJS: Final = (
    "kafkajs",
    "2.2.4",
    "sha512-j/YeapB1vfPT2iOIUn/vxdyKEuhuY2PxMBvf5JWux6iSaukAccrMtXEY/Lb7OvavDhOWME589bpLrEdnVHjfjA==",
)
_LIMIT_S: Final = 300


def play_kafkajs(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our program for kafkajs; all of its tests, whatever the pattern."""
    node, module = tool("node", "Node.js 18 or newer (Debian: apt-get install nodejs npm)"), cache.npm(*_KAFKAJS)
    env = {**os.environ, "SUITE_MODULE": str(module), "SUITE_BROKER": broker.address}
    command = [node, str(_PROGRAMS / "kafkajs_test.js")]
    output = output_of(command, cwd=module, env=env, log=log, limit_s=_LIMIT_S)
    for outcome, test in re.findall(r"^##(pass|fail) (.*)$", output, re.MULTILINE):
        if re.search(pattern, test):
            yield test, Outcome(outcome)

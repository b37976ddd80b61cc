"""JSON as a type, from any number of threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from deltamq.mq.client.http.answers import decode_as

#: Types that nobody has met yet, again and again, each met by four threads at once.
_RACE = """
import sys, threading, types
from deltamq.mq.client.http.answers import decode_as

SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    name: str
    ranges: list[tuple[int, int]]
class Outer(msgspec.Struct):
    epoch: int
    parts: list[Inner]
'''
RAW = b'{"epoch": 1, "parts": [{"name": "a", "ranges": [[1, 2]]}]}'
sys.setswitchinterval(1e-6)
for number in range(1_000):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    together = threading.Barrier(4)
    found = []
    def meet():
        together.wait()
        found.append(decode_as(RAW, module.Outer).parts[0].name)
    threads = [threading.Thread(target=meet) for _ in range(4)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert found == ["a"] * 4
"""


@pytest.mark.long
def test_threads_that_meet_a_type_at_once_do_not_crash_the_interpreter() -> None:
    """In a process of its own: without the lock it ends by SIGSEGV."""
    ended = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr


def test_what_is_not_of_the_type_is_refused() -> None:
    assert decode_as(b'{"a": [1]}', dict[str, list[int]]) == {"a": [1]}
    with pytest.raises(msgspec.ValidationError):
        decode_as(b'{"a": ["x"]}', dict[str, list[int]])

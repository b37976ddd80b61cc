"""A process that used an object store ends as it says (SPEC RELY-19)."""

from __future__ import annotations

import subprocess
import sys

_RUNS = 4
_WITHIN_S = 120
#: Ends when the first of many calls is answered: the others' answers come as the interpreter ends.
_PROGRAM = """
import asyncio
import threading

from obstore.store import MemoryStore

from deltamq.tables.store.remote import CountedRemote

store = CountedRemote(MemoryStore())
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


async def first():
    puts = [asyncio.ensure_future(store.put(f"file{number}", b"x" * 1_000)) for number in range(300)]
    await asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED)


asyncio.run_coroutine_threadsafe(first(), loop).result()
print("done", flush=True)
"""


def test_rely_19_a_process_whose_last_answers_come_as_it_ends_says_that_it_succeeded() -> None:
    for _ in range(_RUNS):
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=_WITHIN_S
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")

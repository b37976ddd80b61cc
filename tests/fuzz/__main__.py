"""`make fuzz`: search every decoder for SECONDS each; exits 1 if one fails, and puts the inputs into the corpus.

Each decoder has a process of its own, because a failure of native code ends it. The process notes each input before it
tries it, so that the parent knows which one that was.
"""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.decoders import DECODERS
from tests.fuzz.mutation import INPUT_BYTES_MAX
from tests.fuzz.search import CORPUS, Found, Search, name_of

_LENGTH_BYTES = 4
#: Failures after which the search of a decoder ends: more of the same tell nothing.
_FOUND_MAX = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=f"one of {', '.join(DECODERS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each decoder")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = sorted(set(asked.decoders) - DECODERS.keys())
    if unknown:
        parser.error(f"there is no decoder {unknown[0]}")
    if asked.note is not None:
        return _search(asked.decoders[0], asked.seconds, asked.seed, asked.note)
    print(f"seed {asked.seed}; {asked.seconds:g} s for each decoder", flush=True)
    failed = [name for name in asked.decoders or DECODERS if not _searched(name, asked.seconds, asked.seed)]
    if failed:
        print(f"failed: {', '.join(failed)}; tests/fuzz/test_fuzz.py tries the inputs in {CORPUS} again")
    return 1 if failed else 0


def _searched(decoder: str, seconds: float, seed: int) -> bool:
    """Search a decoder in a process of its own; return whether it never failed."""
    with tempfile.NamedTemporaryFile() as note:
        note.truncate(_LENGTH_BYTES + INPUT_BYTES_MAX)
        flags = ["--seconds", str(seconds), "--seed", str(seed), "--note", note.name]
        status = subprocess.run([sys.executable, "-m", "tests.fuzz", decoder, *flags], check=False).returncode
        if status not in (0, 1):
            whole = Path(note.name).read_bytes()
            data = whole[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(whole[:_LENGTH_BYTES], "little")]
            print(f"{decoder:<22} the process died with status {status}: {_keep(decoder, data)}", flush=True)
    return status == 0


def _search(decoder: str, seconds: float, seed: int, note: Path) -> int:
    search, tried, found = Search(decoder, seed), 0, dict[str, Found]()
    end = time.monotonic() + seconds
    with open(note, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        for data in search.inputs():
            if time.monotonic() >= end or len(found) >= _FOUND_MAX:
                break
            data = data[:INPUT_BYTES_MAX]
            shared[: _LENGTH_BYTES + len(data)] = len(data).to_bytes(_LENGTH_BYTES, "little") + data
            tried += 1
            failure = search.try_one(data)
            if failure is not None:
                found.setdefault(_where(failure), failure)
    print(f"{decoder:<22} {tried:>9,} inputs, {search.taken:>8,} taken, {len(found)} failures", flush=True)
    for where, failure in found.items():
        print(f"  {type(failure.error).__name__} at {where}: {_keep(decoder, failure.data)}", flush=True)
        traceback.print_exception(failure.error)
    return 1 if found else 0


def _where(failure: Found) -> str:
    """Return the place that raised, which tells failures apart."""
    last = traceback.extract_tb(failure.error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _keep(decoder: str, data: bytes) -> Path:
    path = CORPUS / decoder / name_of(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main())

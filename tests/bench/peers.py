"""The peers in the same go: their own scripts start them, load them and stop them; we read the results and divide.

`DIR` holds `run.py` and a folder for each peer; what they need and leave lies in the folder that the environment
variable MQ_PEERS_STATE names, else where the scripts keep it by default. Ratios compare what was measured within
minutes on the same machine: ours with an fsync before every acknowledgement, theirs as they come (Kafka and RocketMQ
leave the flush to the page cache).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.effort import Effort
from tests.bench.figure import Figure

__all__ = ["PAIRS", "Pair", "Peers", "Ratio", "ratios"]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One of our figures beside one of a peer's: `letter` makes its script measure `measure`."""

    ours: str
    peer: str
    letter: str
    measure: str
    size: int
    field: str
    scale: float
    wanted: float | None


def _beside(
    ours: str,
    peer: str,
    letter: str,
    measure: str,
    field: str = "msgs_s",
    *,
    size: int = 100,
    wanted: float | None = None,
) -> Pair:
    return Pair(
        ours=ours,
        peer=peer,
        letter=letter,
        measure=measure,
        field=field,
        size=size,
        scale=1e-3 if field.endswith("_us") else 1.0,
        wanted=wanted,
    )


def _pairs() -> list[Pair]:
    produce, batch = "a produce acks=all", "a batch 4x100"
    found = [
        _beside("rest.arrow.100B.rate", "kafka", "a", produce, wanted=1.5),
        _beside("rest.arrow.1KiB.mb", "kafka", "a", produce, "mb_s", size=1024, wanted=1.5),
        _beside("rest.ndjson.100B.rate", "kafka", "a", produce),
        _beside("rest.json100.100B.rate", "rocketmq", "a", batch, wanted=1.0),
        _beside("rest.json100.1KiB.rate", "rocketmq", "a", batch, size=1024),
        _beside("fetch.rest.tail.rate", "kafka", "c", "c consume", wanted=1.0),
        _beside("fetch.rest.history.rate", "kafka", "c", "c consume", wanted=1.0),
        _beside("pop.json32.rate", "kafka", "d", "d share c4 b32", wanted=1.0),
        _beside("pop.json32.rate", "rocketmq", "d", "d pop-ack-batch c4 b32", wanted=1.0),
        _beside("pop.json32.rate", "redis", "d", "d XREADGROUP c4 b32"),
        _beside("pop.stored32.rate", "rocketmq", "d", "d pop-ack-batch c4 b32"),
        _beside("pop.arrow500.rate", "kafka", "d", "d share c4 b500", wanted=1.0),
        _beside("pop.arrow500.rate", "redis", "d", "d XREADGROUP c4 b500"),
    ]
    for peer in ("kafka", "rocketmq", "redis"):
        found += [
            _beside("rest.sync1.sync.p50", peer, "b", "b sync c1", "send_p50_us"),
            _beside("rest.sync1.async.p50", peer, "b", "b sync c1", "send_p50_us"),
            _beside("rest.sync16.sync.rate", peer, "b", "b sync c16", wanted=1.0 if peer == "rocketmq" else None),
            _beside("rest.sync16.async.rate", peer, "b", "b sync c16"),
        ]
    return found


PAIRS: Final = _pairs()


class Ratio(msgspec.Struct, frozen=True):
    """Ours divided by theirs; for times, less is better."""

    pair: Pair
    ours: float
    theirs: float

    @property
    def value(self) -> float:
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether the wanted ratio is reached; None without one."""
        return None if self.pair.wanted is None else self.value >= self.pair.wanted

    def to_json(self) -> dict[str, object]:
        """For the results file."""
        about = {"ours": self.pair.ours, "peer": self.pair.peer, "measure": self.pair.measure, "size": self.pair.size}
        return {**about, "value": self.ours, "theirs": self.theirs, "ratio": self.value, "wanted": self.pair.wanted}


class Kafka(msgspec.Struct, frozen=True):
    """A running Kafka broker of the peers' scripts."""

    java: list[str]
    server: str
    data: Path
    environment: dict[str, str]

    def make_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with the peers' own tool."""
        command = [*self.java, "KafkaBench", "topic", topic, str(partitions)]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)


class Peers:
    """The peers' scripts and their state."""

    def __init__(self, folder: Path, say: Callable[[str], None], effort: Effort) -> None:
        self._folder = folder.absolute()
        self._say = say
        self._options = ["--warm", f"{effort.peer_warmup_s:g}", "--secs", f"{effort.peer_window_s:g}"]
        self._options += ["--reps", str(effort.peer_repeats), "--quiet", f"{effort.quiet_s:g}"]
        state = os.environ.get("MQ_PEERS_STATE")
        # Make hands its own PEERS=DIR on, which the scripts would take for the folder of their state.
        self.environment = {name: value for name, value in os.environ.items() if name != "PEERS"}
        self.environment |= {"PEERS": state} if state else {}
        lines = self._shell("env").splitlines()
        self.environment |= dict(line.split("=", 1) for line in lines if "=" in line)
        self._state = Path(self.environment["PEERS"])

    def _shell(self, command: str) -> str:
        script = f'. "{self._folder}/env.sh"; {command}'
        return subprocess.run(
            ["bash", "-c", script], env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def measure(self, pairs: Sequence[Pair]) -> list[dict[str, object]]:
        """Run each peer that the pairs name; the results of its runs."""
        results = self._state / "results" / "results.jsonl"
        found: list[dict[str, object]] = []
        for peer in dict.fromkeys(p.peer for p in pairs):
            asked = [p for p in pairs if p.peer == peer]
            # "a" makes the topic that the others use
            letters = ",".join(dict.fromkeys(["a", *(p.letter for p in asked)]))
            sizes = ",".join(dict.fromkeys(str(p.size) for p in asked))
            before = results.stat().st_size if results.exists() else 0
            self._say(f"measuring {peer}: {letters}, bodies of {sizes} B")
            command = [sys.executable, str(self._folder / "run.py"), peer, "--start", "--parts", "4"]
            command += ["--only", letters, "--sizes", sizes, *self._options]
            subprocess.run(command, env=self.environment, check=True, capture_output=True)
            with results.open() as lines:
                lines.seek(before)
                found += [json.loads(line) for line in lines]
        return found

    @contextmanager
    def kafka(self) -> Iterator[Kafka]:
        """A fresh Kafka broker."""
        scripts = self._folder / "kafka"
        started = subprocess.run(
            ["bash", str(scripts / "start.sh"), "--clean"], env=self.environment, capture_output=True, text=True
        )
        if started.returncode != 0:
            raise RuntimeError(f"Kafka did not start: {started.stdout} {started.stderr}")
        classes = f"{self._state}/classes/kafka:{self._state}/kafka/lib/*"
        java = ["java", *self.environment["JCOMMON"].split(), "-Xmx1g", "-cp", classes]
        server = f"127.0.0.1:{self.environment['KAFKA_PORT']}"
        try:
            yield Kafka(java, server, self._state / "kafka" / "data", self.environment)
        finally:
            subprocess.run(["bash", str(scripts / "stop.sh")], env=self.environment, check=True, capture_output=True)


def ratios(figures: Sequence[Figure], runs: Sequence[dict[str, object]]) -> list[Ratio]:
    """Our medians divided by the medians of the peers' runs."""
    ours = {f.name: f.median for f in figures}
    found = []
    for pair in PAIRS:
        theirs = [
            float(str(run[pair.field])) * pair.scale
            for run in runs
            if (run["peer"], run["measure"], run["size"]) == (pair.peer, pair.measure, pair.size) and pair.field in run
        ]
        if pair.ours in ours and theirs:
            found.append(Ratio(pair, ours[pair.ours], statistics.median(theirs)))
    return found

"""What Spark's processes write on standard error becomes events, also long after they were started (SPEC LOOK-13)."""

from __future__ import annotations

import json
import subprocess
import sys

#: Starts a process as Spark's JVM is started; it writes while it starts, and again when it is told to.
_PROGRAM = """
import logging, subprocess, sys, threading
from deltamq.jobs.spark.jvm_lines import jvm_lines_logged
from deltamq.tables.config_sections import LogFormat, LogLevel
from deltamq.tables.log_lines import log_to_stderr

child = '''
import sys
print("WARNING: as it starts", file=sys.stderr, flush=True)
print("up", flush=True)
sys.stdin.readline()
for line in ("Traceback (most recent call last):", "  File x", "BrokenPipeError: pipe"):
    print(line, file=sys.stderr)
print("no end", end="", file=sys.stderr, flush=True)
'''
log_to_stderr(LogFormat.JSON, LogLevel.INFO)
with jvm_lines_logged():
    started = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started.stdout.readline()
    logging.getLogger("deltamq.jobs").info("event=ours")
started.communicate("go\\n")
for thread in threading.enumerate():
    if thread.name == "spark-stderr":
        thread.join()
sys.stderr.write("our own\\n")
"""


def test_look_13_what_sparks_processes_write_is_json_too() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    *lines, last = ran.stderr.splitlines()
    assert last == "our own", "the process keeps its own standard error"
    logged = [json.loads(line) for line in lines]
    texts = "\n".join(line["text"] for line in logged if line["event"] == "spark_wrote")
    assert texts.splitlines() == [
        "WARNING: as it starts",
        "Traceback (most recent call last):",
        "  File x",
        "BrokenPipeError: pipe",
        "no end",
    ]
    assert "ours" in {line["event"] for line in logged}

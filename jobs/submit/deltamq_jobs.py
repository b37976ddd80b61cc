r"""`deltamq jobs` for spark-submit, which starts a file and not a command:

    spark-submit --master spark://host:7077 --jars "$(deltamq setup --jars)" \
        jobs/submit/deltamq_jobs.py run merge --once --warehouse /shared/warehouse

The arguments after the file are those of `deltamq jobs`. Settings of spark-submit (master, jars, sizes) win over the
profile's. The file lies alone in its folder, since Python looks there first for every module.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from deltamq.jobs.cli.jobs_group import jobs_command
except ImportError:  # the project is not installed on the driver, so use the tree that this file is part of
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / ".path"))
    from deltamq.jobs.cli.jobs_group import jobs_command


if __name__ == "__main__":
    jobs_command(prog_name="deltamq jobs")

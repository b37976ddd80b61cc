r"""`deltamq jobs` for spark-submit, which starts a file and not a command:

    spark-submit --master spark://host:7077 --jars "$(deltamq setup --jars)" \
        jobs/submit/deltamq_jobs.py run merge --once --warehouse /shared/warehouse

The arguments after the file go to `deltamq jobs`. Settings of spark-submit (master, jars, sizes) win over the
profile's. The folder has no other module, since Python looks there first for every import.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from deltamq.jobs.cli.jobs_group import jobs_command
except ImportError:  # the project is not installed on the driver, so use this file's tree
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / ".path"))
    from deltamq.jobs.cli.jobs_group import jobs_command


if __name__ == "__main__":
    jobs_command(prog_name="deltamq jobs")

"""The file calls of a commit and the data file that it names, in the order that durability needs.

    write file -> write temp -> sync file, folder of the file, temp -> link temp to its name -> rename it to .head
        -> sync folder of the log

`link` fails if the name exists, whichever process created it, and never overwrites; what the commit names and its own
content are durable before the name appears. Both files are written before the first sync, because the file system then
puts them to disk together: a commit takes a fifth less time.

`tables.store.native` does the same in one call.
"""

from __future__ import annotations

import os

from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.file_system import CommitStep, Failed, FileSystem, Publication


def publish_in_steps(files: FileSystem, wanted: Publication, *, sync: bool) -> Failed | None:
    """Publish in Python; return what failed, None if nothing did."""
    step = CommitStep.WRITE_FILE
    try:
        files.write_new(wanted.file, wanted.file_data, sync=False)
        failpoint("commit.after_data_write")
        step = CommitStep.WRITE_LOG
        failpoint("commit.before_log_tmp")
        files.write_new(wanted.temp, wanted.log, sync=False)
        step = CommitStep.SYNC
        if sync:
            files.sync_file(wanted.file)
            files.sync_folder(os.path.dirname(wanted.file))
            failpoint("commit.after_data_fsync")
            files.sync_file(wanted.temp)
        failpoint("commit.after_log_fsync")
        step = CommitStep.LINK
        files.link(wanted.temp, wanted.name)
    except OSError as error:
        return Failed(step, error)
    failpoint("commit.after_link")
    try:
        files.rename(wanted.temp, wanted.head)
        if sync:
            files.sync_folder(os.path.dirname(wanted.name))
    except OSError as error:
        return Failed(CommitStep.SETTLE, error)
    return None

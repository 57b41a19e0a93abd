"""One process at a time builds in a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

LOCK = ".lock"
# Who may not write here can only use what is finished; some file systems have no locks.
_NO_LOCK = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
}


@contextlib.contextmanager
def locked(folder: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Creates the folder and holds its lock; waits while another process has it.

    The lock is the process's, not the file's: it ends with the process, even if that
    is killed, and the empty file stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(folder / LOCK, "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log(f"another process is building records in {folder}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
        yield

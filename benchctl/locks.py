"""Locks on files between processes. The system releases a lock with the process that holds it, however that ends."""

import errno
import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(file: int) -> bool:
    """Whether no other process holds the lock of the open file (its descriptor), which this process then holds until it
    closes the file. True also on a file system without locks. Raises OSError for other failures."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # a network file system may report either
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def wait_for_lock(file: int) -> None:
    """Wait until `try_lock` would be true, and hold the lock."""
    fcntl.flock(file, fcntl.LOCK_EX)

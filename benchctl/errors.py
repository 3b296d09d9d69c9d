"""The exceptions for what a user can put right."""


class UserError(Exception):
    """A mistake in what was asked for: `UserError("unknown_suite", "message")`.

    The message states what is wrong and what to do; cli/ prints only that. `id` names the kind of mistake, so that
    callers and tests do not depend on the wording.
    """

    def __init__(self, id: str, message: str) -> None:
        super().__init__(id, message)
        self.id = id
        self.message = message

    def __str__(self) -> str:
        return self.message


OUT_OF_MEMORY = "out_of_memory"
ENGINE_ENDED = ("engine_died", "engine_gone")  # a server that benchctl started, and one that was running
# Of torch, the system, C++, CUDA and its products.
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "out of memory", "STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that memory of the machine or of a GPU was short.

    Python raises MemoryError, torch a RuntimeError on a CPU and torch.OutOfMemoryError on a GPU.
    """
    if isinstance(error, UserError):
        return error.id == OUT_OF_MEMORY
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in _NO_MEMORY)


class InvalidData(UserError):
    """A file that is not what it should be, or has impossible content; the message names the file, and the line."""

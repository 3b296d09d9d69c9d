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


class InvalidData(UserError):
    """A file that is not what it should be, or says what cannot be true; the message names the file, and the line."""

"""The exceptions for what a user can put right."""


class UserError(Exception):
    """A mistake in what was asked for. Its message says what is wrong and what to do; cli/ prints only that."""


class InvalidData(UserError):
    """A file that is not what it should be, or says what cannot be true; the message names the file, and the line."""

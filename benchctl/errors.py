"""The one exception for what a user can put right."""


class UserError(Exception):
    """A mistake in what was asked for. Its message says what is wrong and what to do; cli/ prints only that."""

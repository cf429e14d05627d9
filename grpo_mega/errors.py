"""The one exception that means "the user can mend this"."""


class UserError(ValueError):
    """A mistake in configuration, data or a user's function.

    The message names the values and the key to change. The command line prints it alone, without a
    traceback, and exits with code 2. It must be raised on every rank (see `runtime.agreement`) or before
    any process group exists.
    """

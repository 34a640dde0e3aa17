"""Errors a user can meet. Each message is one line that says what to do.

The command line prints the message and exits with status 1 (``--debug`` adds the trace);
the API raises the class, so that a caller can tell the cases apart.
"""


class SwitchReduceError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(SwitchReduceError):
    """An argument, file or setting is not usable as given."""


class MissingPackageError(UsageError, ImportError):
    """An optional package is needed here and not installed; the message says how to get it."""


class NonFiniteError(SwitchReduceError, ValueError):
    """A gradient holds NaN or infinity; the message names rank and index."""


class SumOverflowError(SwitchReduceError, OverflowError):
    """An integer sum does not fit the array's dtype; nothing was written."""


class MismatchError(SwitchReduceError):
    """Ranks disagree about shape, dtype, op, codec, call or world size."""


class RankLostError(SwitchReduceError):
    """A rank never joined, died or stopped answering; the message names it."""


class ControllerError(SwitchReduceError):
    """The controller cannot be reached, refused the request or went away."""


class SwitchError(SwitchReduceError):
    """The switch cannot be reached, refused its configuration or does not answer."""


class UnsupportedProgramError(SwitchReduceError):
    """A compiled P4 program uses a construct outside the embedded switch's subset."""

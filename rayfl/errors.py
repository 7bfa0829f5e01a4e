"""The two kinds of failure a person meets."""


class UserError(ValueError):
    """Something in the request can't be done: one line that says what was wanted, what came, what to do."""


class RunFailed(RuntimeError):
    """A run stopped half-way; what it had finished is kept."""


class PartyLost(RunFailed):
    """A process that hosts parties is gone; the round can be repeated elsewhere."""

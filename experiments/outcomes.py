"""How a command ends that does not reach its end."""


class Stopped(Exception):
    """A signal has ended the run after a checkpoint; the message says where.

    Attributes:
      signum: Which signal; the process exits with 128 more, as shells count.
    """

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class Failed(Exception):
    """The run cannot go on; the message says why in a sentence."""

"""The exceptions. Every message is one sentence: the value, what was expected, what to do."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text without what could garble a terminal or turn the direction of writing."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def reason(error: BaseException) -> str:
    """What an error says, in one line of moderate length."""
    lines = str(error).splitlines() or [""]
    said = one_line(lines[0])
    said = said if len(said) <= 300 else f"{said[:300]}…"
    return said or type(error).__name__


class AutorecallError(Exception):
    """Anything autorecall refuses or cannot recover from; the command line prints it without a traceback."""

    def __str__(self) -> str:
        """One line without escape codes: a message may repeat what a file holds."""
        return one_line(super().__str__())


class ConfigError(AutorecallError):
    """A setting that cannot work, such as zero images or a negative rate."""


class DataError(AutorecallError):
    """A data file or folder that is missing, damaged or not what it claims to be."""


class BrokenImageError(DataError):
    """An image file that cannot be read."""


class UnreadableError(DataError):
    """A file that could not be read this time; its content is unknown."""


class InputError(AutorecallError):
    """A batch, a label or a network that a learner cannot use."""


class DivergedError(AutorecallError):
    """A number in a training step is no longer finite.

    The learner is as it was before the batch, unless the message says that the step spoiled it.
    """

    def __init__(self, term: str, value: float, spoiled: bool = False) -> None:
        self.term = term
        self.value = value
        self.spoiled = spoiled
        advice = "lower the learning rates or the weights of the objective"
        if spoiled:
            advice = f"this step spoiled the network: go on from what was saved before it, and {advice}"
        super().__init__(f"{term} became {value}; {advice}")


class InUseError(AutorecallError):
    """A run folder that another process holds."""


class WriteError(AutorecallError):
    """A file that could not be written, e.g. on a full disk."""


class StoppedError(AutorecallError):
    """A run that could not finish although its input was valid, e.g. because the network diverged."""

    exit_code = 1


class InterruptedRunError(StoppedError):
    """A run that was asked to stop and can be resumed."""

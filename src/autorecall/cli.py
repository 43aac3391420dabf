"""The command line: picks the command, and turns errors into one sentence and an exit code.

Heavy imports wait until a command needs them, so `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from . import __version__

COMMANDS = (
    "run",
    "sweep",
    "reproduce",
    "predict",
    "learn",
    "export",
    "list",
    "show",
    "report",
    "bench",
)  # each a module of `commands` with a function `main`
HELP = """\
autorecall - continual learning that keeps no data

usage: autorecall COMMAND [OPTIONS]

commands:
  run [PRESET]   train one learner on one stream, and write its results to a folder
  sweep PRESET…  many runs: presets, seeds and values, several at a time
  reproduce NAME a table or figure of the paper, from the runs that it needs
  predict RUN …  classify images with the model that a run left
  learn RUN      go on from a finished run with new images, and classes that it has not seen
  export RUN     write the model of a run as an ONNX file
  list [DATASET] print the presets, one `dataset/method` per line
  show DIR       collect all runs under a folder into one table, next to the paper's figures
  report DIR     the same as one HTML file, with curves, recalled classes, settings and cost of every run
  bench          measure what recall costs on this machine

`autorecall COMMAND --help` explains a command. Where to start:

  autorecall run                          ARM on MNIST-5k, about ten seconds, nothing to download
  autorecall run mnist/naive --seed 1     what happens without it
  autorecall show runs                    both, next to the published figures
"""


def main() -> None:
    """The `autorecall` program."""
    from .commands.process import wait_briefly

    wait_briefly()
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, TextIOWrapper):
            file.reconfigure(errors="backslashreplace")  # an old terminal may not know ± or a name
    code = dispatch(sys.argv[1:])
    if code > 128:
        from .commands.signals import ignore

        ignore()  # another signal during shutdown would change the exit code
    sys.exit(code)


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0 done, 1 run not finished, 2 bad input, 128 + N signal N."""
    try:
        code = _obey(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`autorecall show runs | head`).
        _close_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        _close_output()
        return _refuse(f"{error.filename or 'output'}: {error.strerror}; check the path and the free space", 2)
    return code


def _obey(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"autorecall {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _refuse(f"there is no command {name!r:.80}; expected one of {', '.join(COMMANDS)}", 2)
    from .errors import AutorecallError, StoppedError

    try:
        import_module(f".commands.{name}", __package__).main(rest)
    except StoppedError as error:
        return _refuse(str(error), error.exit_code)
    except AutorecallError as error:
        return _refuse(str(error), 2)
    except MemoryError:
        return _refuse("this needs more memory than the machine has; lower the sizes in the config", 1)
    except RuntimeError as error:
        if "allocate" not in str(error):  # torch's wording for the same
            raise
        return _refuse("this needs more memory than the machine has; lower the sizes in the config", 1)
    return 0


def _refuse(sentence: str, code: int) -> int:
    from .commands.text import complain

    complain(sentence)
    return code


def _close_output() -> None:
    """Keep the interpreter from flushing a dead stdout, which would change the exit code."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

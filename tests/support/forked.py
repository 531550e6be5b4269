"""The command line in processes of its own that start in a moment: forked from one that has imported it.

In: a command. Out: a process with its output, as `subprocess.Popen` has it, to be killed at any time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["dnc.cli", "dnc.api", "dnc.cli.progress", "dnc.runtime.trainer"])


class Command:
    """`dnc` with some arguments, in the folder that is current now. returncode: None while it runs."""

    def __init__(self, *line: str) -> None:
        (out, out_end), (error, error_end) = (_FORKS.Pipe(duplex=False) for _ in range(2))
        self._process = _FORKS.Process(target=_run, args=(line, os.getcwd(), out_end, error_end))
        self._process.start()
        for end in (out_end, error_end):
            end.close()
        self.stdout, self._error = _file(out), _file(error)

    @property
    def returncode(self) -> int | None:
        """As that of `Popen`: negative for a signal."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """To the process, if it runs."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def communicate(self) -> tuple[bytes, bytes]:
        """What it still writes until it ends; of errors no more than a pipe holds."""
        both = self.stdout.read(), self._error.read()
        self._process.join()
        return both

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.join()
        self.stdout.close()
        self._error.close()


def _file(end: Connection) -> IO[bytes]:
    with end:
        return os.fdopen(os.dup(end.fileno()), "rb")


def _run(line: tuple[str, ...], folder: str, out: Connection, error: Connection) -> None:
    from dnc.__main__ import main

    os.chdir(folder)
    for number, end in ((1, out), (2, error)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["dnc", *line]
    main()

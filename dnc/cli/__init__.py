"""The command line: one file a command, all of it through `dnc.api` and `dnc.compiler`.

Guaranteed: a user's mistake is a message on standard error and exit code 2, an interrupt is exit
code 130; a traceback is a bug of dnc. Standard output holds results only. A command imports what it
needs when it runs, so that none waits for the others' imports.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from dnc.cli.check import check
from dnc.cli.compile import compile_command
from dnc.cli.explain import explain
from dnc.cli.importing import import_command
from dnc.cli.run import run
from dnc.diagnostics import DiagnosticError

# Typer brings its own click in some versions, so the class is taken from where it surely is.
USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="dnc",
    help="A compiler for dynamic neural networks: trees, sequences, DAGs.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("compile")(compile_command)
app.command("run")(run)
app.command("check")(check)
app.command("explain")(explain)
app.command("import")(import_command)


def main() -> None:
    """The entry point of the `dnc` command."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Runs a command line; the exit code."""
    try:
        code = app(args=arguments or ["--help"], prog_name="dnc", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DiagnosticError as error:
        print(error, file=sys.stderr)
    except USAGE_ERROR as error:
        print(f"error: {error.format_message().rstrip('.')} (see dnc --help)", file=sys.stderr)
    except typer.Exit as error:
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `dnc explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("error: out of memory", file=sys.stderr)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
    return 2

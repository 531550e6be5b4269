"""The command line: one file a command, which reads options and calls the Python interfaces.

Guaranteed: a user's mistake is a message on standard error and exit code 2, an interrupt is exit
code 130; a traceback is a bug of dnc. Standard output holds results only. A command imports what it
needs when it runs, so that none waits for the others' imports. Help is plain text: it is right on
every terminal, 40 columns wide or a pipe.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dnc.diagnostics import DiagnosticError
from dnc.version import VERSION

# Typer brings its own click in some versions, so the class is taken from where it surely is.
USAGE_ERROR: Any = typer.BadParameter.__base__

INTERRUPTED = 130  # the exit code

# What others call what `dnc run` does.
_RUNS = {"train": "", "fit": "", "eval": " --eval", "evaluate": " --eval", "predict": " --predict OUT"}


class _Stopped(Exception):
    """Ctrl-C, or nobody reads our output any more. Typer would answer both without a word."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


def _guarded(command: Callable[..., int | None]) -> Callable[..., int | None]:
    @wraps(command)
    def guarded(*arguments: Any, **options: Any) -> int | None:
        try:
            code = command(*arguments, **options)
            if not sys.stdout.closed:  # as the language server leaves it
                sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            raise _Stopped(INTERRUPTED, "interrupted") from None
        except BrokenPipeError:  # the reader has gone, as in `dnc explain build | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _Stopped(0) from None

    return guarded


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dnc {VERSION}")
        raise typer.Exit()


def _callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A compiler for dynamic neural networks: trees, sequences, DAGs."""


class _Command(TyperCommand):
    """A command that refuses an option given twice, whose first value would be lost without a word, and one
    whose value was forgotten, which would be the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the arguments; a usage error names the option."""
        values, _, found = self.make_parser(ctx).parse_args(args=list(args))
        given: list[Any] = found
        options = [each for each in self.get_params(ctx) if each.param_type_name == "option"]
        names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
        for option in options:
            value = values.get(option.name or "")
            texts = value if isinstance(value, list) else [value]
            for text in (each for each in texts if str(each).partition("=")[0] in names):
                ctx.fail(f"{_long_name(option)} needs a value; found the option {text}")
        left = super().parse_args(ctx, list(args))  # ends where help is wanted
        for option in (each for each in given if given.count(each) > 1):
            if not option.multiple and (option.secondary_opts or not option.is_flag):
                ctx.fail(f"{_long_name(option)} is given more than once")
        return left


def _long_name(option: Any) -> str:
    return max(option.opts, key=len)  # type: ignore[no-any-return]


COMMANDS = {
    "bench": "dnc.cli.bench:bench",
    "calibrate": "dnc.cli.calibrate:calibrate",
    "check": "dnc.cli.check:check",
    "compile": "dnc.cli.compile:compile_command",
    "explain": "dnc.cli.explain:explain",
    "fmt": "dnc.cli.fmt:fmt",
    "generate": "dnc.cli.generate:generate",
    "import": "dnc.cli.importing:import_command",
    "lsp": "dnc.cli.lsp:lsp",
    "opt": "dnc.cli.opt:opt",
    "run": "dnc.cli.run:run",
    "import-weights": "dnc.cli.weights:import_weights",
    "export-weights": "dnc.cli.weights:export_weights",
    "trace": "dnc.cli.trace:trace",
    "tune": "dnc.cli.tune:tune",
}
"""Of each command the function, whose file is read when it is needed."""


@cache
def _command_line(name: str | None) -> Any:
    """What reads a command line whose command is known, or any; Typer takes 5 ms to prepare a command."""
    app = typer.Typer(
        name="dnc",
        help="A compiler for dynamic neural networks: trees, sequences, DAGs.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_callback)
    for each in COMMANDS if name is None else [name]:
        app.command(each, cls=_Command)(_guarded(resolve_name(COMMANDS[each])))
    return typer.main.get_command(app)


PACKAGES = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm", "lark": "lark"}
"""Of a module that only compiling and CPU builds need, the package: a machine with a GPU may lack it."""


UNWRITTEN = (errno.ENOSPC, errno.EIO, errno.EBADF)
"""Errors of writing; without the name of a file those of standard output, as files of ours are named."""


def main() -> None:
    """The command line of this process; its exit code ends it."""
    # TVM imports PyTorch where it is installed, which takes longer than all else here; no command needs it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    if sys.stdout is None:  # closed by the shell, as in `dnc check program.dn >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout.errors == "strict" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on standard error
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Runs a command line; the exit code."""
    known = arguments[0] if arguments and arguments[0] in COMMANDS else None
    try:
        code = _command_line(known)(args=arguments or ["--help"], prog_name="dnc", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DiagnosticError as error:
        print(error, file=sys.stderr)
    except USAGE_ERROR as error:
        if arguments[0] in _RUNS:  # no command has such a name
            does = f"dnc run BUILD --data FILE{_RUNS[arguments[0]]} (see dnc run --help)"
            print(f"error: No such command '{arguments[0]}'; it is {does}", file=sys.stderr)
            return 2
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else f"dnc {known or ''}".rstrip()
        _in_our_words(error)
        print(f"error: {error.format_message().rstrip('.')} (see {where} --help)", file=sys.stderr)
        note = _size_note(getattr(error, "option_name", None), arguments)
        if note:
            print(f"  {note}", file=sys.stderr)
    except typer.Exit as error:
        if error.exit_code == INTERRUPTED:  # while Typer still read the command line
            print("interrupted", file=sys.stderr)
        return int(error.exit_code)
    except _Stopped as stop:
        if str(stop):
            print(stop, file=sys.stderr)
        return stop.code
    except MemoryError:
        print("error: out of memory", file=sys.stderr)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in PACKAGES:
            raise
        print(
            f"error: this needs the package {PACKAGES[missing]}, which is not installed here", file=sys.stderr
        )
    except OSError as error:
        place = error.filename or ("standard output" if error.errno in UNWRITTEN else "")
        print(f"error: {place}{': ' if place else ''}{error.strerror or error}", file=sys.stderr)
    return 2


def _size_note(option: str | None, arguments: list[str]) -> str:
    """What sets a size of a model, where an option is unknown that was to do so; "" for any other."""
    if option is None or arguments[0] not in COMMANDS:
        return ""
    from dnc.ir.parser import parse_program
    from dnc.runtime.build import read_build

    given = next(each for each in arguments if each.partition("=")[0] == option)
    behind = arguments[arguments.index(given) + 1 :]
    value = given.partition("=")[2] or (behind[0] if behind and not behind[0].startswith("-") else "")
    name, setting = option.lstrip("-"), value or "NAME=SIZE"
    if option != "--set":
        known = set[str]()
        for folder in filter(os.path.isdir, arguments[1:]):
            with suppress(DiagnosticError):
                known |= {each.name for each in parse_program(read_build(folder).program, folder).dimensions}
        if name not in known:
            return ""
        setting = f"{name}={value or 'SIZE'}"
    return f"the sizes of a model are set as it is compiled: dnc compile PROGRAM --set {setting}"


def _in_our_words(error: Any) -> None:
    """Says found and expected of a wrong number; Typer takes over the words of what checks values for it."""
    for problem in getattr(error.__cause__, "errors", list)():
        kind, limits = problem["type"], problem.get("ctx", {})
        if kind.startswith(("int_", "float_")):
            expected = "a whole number" if kind.startswith("int_") else "a number"
            error.message = f"found '{problem['input']}', expected {expected}"
        elif kind == "greater_than_equal":
            error.message = f"found {problem['input']}, expected {limits['ge']:g} or more"

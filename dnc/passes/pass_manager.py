"""Runs a list of passes: logs, verifies, times and dumps after each.

In: a program (or a plan) and passes. Out: what the last pass made. Guaranteed: what a pass leaves is
verified before the next one sees it, and the message names the pass that broke it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.ir.printer import print_program
from dnc.ir.program import Program
from dnc.ir.remarks import Remarks
from dnc.ir.verifier import program_errors

T = TypeVar("T")


class Pass(Protocol[T]):
    """A frozen object whose fields are its options. `optional` passes only make things faster."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def optional(self) -> bool:
        """Whether it may be left out (`--without`)."""

    def __call__(self, value: T, /) -> T:
        """The transformed value."""


@runtime_checkable
class Deciding(Protocol[T]):
    """A pass that says what it left as it was, and why; calling it decides without saying so."""

    def decide(self, value: T, remarks: Remarks, /) -> T:
        """The transformed value; what could not be done is added to `remarks`."""


@attrs.frozen
class PassOptions:
    """What to leave out and what to show.

    print_after: names of passes, or "all". stop_after: the last pass to run. dump_dir: a folder for
    one file per pass, `00-input.ir`, `01-canonicalize.ir`, ... log: gets what is printed. remarks: gets
    what passes say of their decisions. tell: gets what is under way, if that takes long.
    """

    without: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    stop_after: str | None = None
    dump_dir: Path | None = None
    time_passes: bool = False
    log: Callable[[str], None] = print
    remarks: Remarks | None = None
    tell: Callable[[str], None] = lambda text: None

    def report(self, name: str, seconds: float, made: Callable[[], str] | None) -> None:
        """Shows what is to be seen of a pass. made: prints its result; None where nothing changed."""
        timing = f"  {seconds * 1e3:.1f} ms" if self.time_passes else ""
        if name in self.print_after or "all" in self.print_after:
            self.log(f"# after {name}{timing}" + (" (unchanged)" if made is None else f"\n{made()}"))
        elif timing:
            self.log(f"{name}:{timing}" + (" (unchanged)" if made is None else ""))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Shows how long something takes that is no pass, as making kernels of a plan is."""
        start = time.perf_counter()
        yield
        if self.time_passes:
            self.log(f"{name}:  {(time.perf_counter() - start) * 1e3:.1f} ms")

    def check_names(self, known: Sequence[str], optional: Sequence[str]) -> None:
        """DiagnosticError where a name is none of the known passes, or one of those that are to stay."""
        printed = (name for name in self.print_after if name != "all")
        for name in (*self.without, *printed, *filter(None, [self.stop_after])):
            if name not in known:
                raise fail(f"there is no pass '{name}'", f"passes: {', '.join(known)}")
        for name in self.without:
            if name not in optional:
                able = ", ".join(dict.fromkeys(optional))
                raise fail(f"pass '{name}' cannot be left out", f"these can: {able}")


@attrs.frozen
class PassManager(Generic[T]):
    """A pipeline: `passes` in order, how to find errors in what they make, and how to print it."""

    passes: tuple[Pass[T], ...]
    errors: Callable[[T], Sequence[Diagnostic]]
    show: Callable[[T], str]
    options: PassOptions = PassOptions()

    def run(self, value: T) -> T:
        """The value after all passes; DiagnosticError where one of them breaks it."""
        self._check_names()
        self._check(value, "before the first pass")
        self._dump(0, "input", value)
        for number, step in enumerate(self.passes, 1):
            if step.name in self.options.without:
                continue
            start = time.perf_counter()
            changed = self._apply(step, value)
            seconds = time.perf_counter() - start
            self._check(changed, f"after pass '{step.name}'")
            made = None if value == changed else partial(self.show, changed)
            self.options.report(step.name, seconds, made)
            self._dump(number, step.name, changed)
            value = changed
            if step.name == self.options.stop_after:
                break
        return value

    def _apply(self, step: Pass[T], value: T) -> T:
        remarks = self.options.remarks
        if remarks is None or not isinstance(step, Deciding):
            return step(value)
        remarks.decided_by = step.name
        changed: T = step.decide(value, remarks)
        return changed

    def _check_names(self) -> None:
        names = [step.name for step in self.passes]
        self.options.check_names(names, [step.name for step in self.passes if step.optional])
        if self.options.stop_after in self.options.without:
            raise fail(f"pass '{self.options.stop_after}' is left out: nothing can stop behind it")

    def _check(self, value: T, when: str) -> None:
        errors = self.errors(value)
        if errors:
            raise DiagnosticError(
                *(attrs.evolve(error, message=f"{when}: {error.message}") for error in errors)
            )

    def _dump(self, number: int, name: str, value: T) -> None:
        if self.options.dump_dir is not None:
            self.options.dump_dir.mkdir(parents=True, exist_ok=True)
            (self.options.dump_dir / f"{number:02}-{name}.ir").write_text(self.show(value))


def program_manager(
    passes: tuple[Pass[Program], ...], options: PassOptions = PassOptions()
) -> PassManager[Program]:
    """A pipeline of program passes, verified by the program verifier."""
    return PassManager(passes, program_errors, print_program, options)

"""Logging, stopping, leaving out and checking passes."""

import sys

import attrs
import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.parser import parse_program
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.hoist import Hoist
from dnc.passes.pass_manager import PassOptions, program_manager
from tests.support.command_line import TREE
from tests.support.ir_models import instance

PIPELINE = (Canonicalize(), Hoist(), Differentiate())


@attrs.frozen
class Break:
    """Renames the root struct only where it is declared as the root."""

    name: str = "break"
    optional: bool = True

    def __call__(self, program):
        return attrs.evolve(program, root="Nothing")


def run(passes=PIPELINE, **options):
    lines = []
    program = instance("tree")[0]
    return program_manager(passes, PassOptions(log=lines.append, **options)).run(program), lines


def test_it_runs_all_passes():
    program, lines = run()
    assert program.weight_gradients and not lines


def test_it_prints_and_times():
    _, lines = run(print_after=("canonicalize", "hoist"))
    assert lines[0] == "# after canonicalize (unchanged)"
    assert lines[1].startswith("# after hoist\nprogram TreeLSTM\n")
    parse_program(lines[1])
    _, lines = run(time_passes=True)
    assert [line.split(":")[0] for line in lines] == ["canonicalize", "hoist", "differentiate"]
    assert lines[0].endswith("ms (unchanged)")


def test_it_stops_and_leaves_out():
    assert run(stop_after="hoist")[0] == Hoist()(instance("tree")[0])
    assert run(without=("hoist",))[0] == Differentiate()(instance("tree")[0])


def test_it_stops_behind_no_pass_that_is_left_out():
    with pytest.raises(DiagnosticError, match="pass 'hoist' is left out: nothing can stop behind it"):
        run(stop_after="hoist", without=("hoist",))


def test_it_dumps(tmp_path):
    program, _ = run(dump_dir=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["00-input.ir", "01-canonicalize.ir", "02-hoist.ir", "03-differentiate.ir"]
    assert parse_program((tmp_path / names[-1]).read_text()) == program


def test_it_names_the_pass_that_broke_the_program():
    with pytest.raises(DiagnosticError) as caught:
        run((*PIPELINE, Break()))
    assert "after pass 'break': the root struct 'Nothing' does not exist" in str(caught.value)


def test_unknown_and_necessary_passes():
    with pytest.raises(DiagnosticError, match="there is no pass 'fly'"):
        run(stop_after="fly")
    with pytest.raises(DiagnosticError, match="pass 'differentiate' cannot be left out"):
        run(without=("differentiate",))


def test_a_terminal_shows_what_is_compiled_and_gets_nothing_that_is_printed(command, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    compiled = command(f"compile {TREE} -o one")
    assert "cpu: compiling" in compiled.error and not compiled.out
    printed = command(f"compile {TREE} -o two --time-passes")
    assert "emit:  " in printed.out and "emit:" not in printed.error

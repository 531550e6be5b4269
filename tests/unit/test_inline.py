"""Inlining of plain functions: many at once as one after another, and in time that grows with the program."""

from functools import reduce

import attrs
import pytest

from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.program import Program
from dnc.ir.remarks import Remarks
from dnc.passes import inline
from dnc.passes.inline import Inline
from tests.support.models import EXAMPLES
from tests.support.programs import program_of

TREE = (EXAMPLES / "treelstm.dn").read_text(encoding="utf-8")
PLAIN = "fn logits(t: Tree) = V @ encode(t).h + b_v\n"


def chain(functions: int) -> Program:
    """Every function calls the one before it, and one further back."""
    text = "fn f0(t: Tree) = V @ encode(t).h + b_v\nfn f1(t: Tree) = tanh(f0(t))\n"
    for at in range(2, functions):
        text += f"fn f{at}(t: Tree) = tanh(f{at - 1}(t) + f{at // 2}(t))\n"
    assert PLAIN in TREE
    text = TREE.replace(PLAIN, f"{text}fn logits(t: Tree) = f{functions - 1}(t)\n")
    return load_program(Source("chain.dn", text), {})[0]


def one_by_one(program: Program) -> Program:
    """What the pass makes where it takes the first function that no other one calls, again and again."""
    while callees := inline._order(inline._Calls.of(program)):
        first = callees[0]
        program = attrs.evolve(
            program,
            stages=tuple(inline.inlined(each, [first]) for each in program.stages if each.name != first.name),
            functions=tuple(each for each in program.functions if each.name != first.function),
        )
    used = {stage.space for stage in program.stages}
    return attrs.evolve(program, spaces=tuple(space for space in program.spaces if space.name in used))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_many_at_once_are_inlined_as_one_after_another(first):
    texts = [program_of(seed, groups=5) for seed in range(first, first + 10)]
    programs = [load_program(Source("random.dn", text), {})[0] for text in texts] + [chain(3 + first)]
    for program in programs:
        assert Inline()(program) == one_by_one(program)


def test_an_operation_is_written_once_for_each_stage(monkeypatch):
    """And once more where it goes into a caller: not again with every function behind it."""
    renamed = []
    original = inline._renamed
    monkeypatch.setattr(inline, "_renamed", lambda op, names: (renamed.append(op), original(op, names))[1])
    program = chain(200)
    found = Inline().decide(program, Remarks())
    assert [function.name for function in found.functions] == ["encode"]
    assert len(renamed) <= 2 * reduce(lambda count, stage: count + len(stage.cell.ops), found.stages, 0)

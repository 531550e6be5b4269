"""dnc explain: facts, text and page of every example; the memory it predicts is what a batch takes."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import attrs
import numpy as np
import pytest

from dnc.compiler import PlanOptions, make_plan, read_program, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.explain.facts import PlanFacts, gather
from dnc.explain.html import as_page, picture
from dnc.explain.memory import MemoryFacts, memory_facts
from dnc.explain.text import as_text, explain_schedule
from dnc.frontend.build import load_program
from dnc.ir.plan import Plan
from dnc.ir.shared_memory import shared_memory
from dnc.runtime.build import read_build, write_build
from dnc.runtime.data import examples, read_samples, table_rows
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES
from tests.unit.test_remarks import NAMES, example

VOID = {"meta", "br", "rect"}
MEMORY = 80 * 2**30


class Page(HTMLParser):
    """Tags have to be closed in order; what is shown and what is linked is kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("href", "src") if name in found]
        self.ids |= {found["id"]} if "id" in found else set()
        if tag not in VOID or tag == "rect":
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def memory_of(plan: Plan, memory: int = MEMORY) -> MemoryFacts:
    import msgspec

    sample = msgspec.json.decode(examples(plan.program)[1])
    given = read_samples([sample], plan.program)
    rows = table_rows(plan.program, given.vocabularies)
    return memory_facts(plan, given.forest, rows, memory, "a made-up sample")


@cache
def explained(name: str, target: str) -> tuple[PlanFacts, MemoryFacts]:
    plan, _ = example(name, target)
    return gather(plan), memory_of(plan)


@pytest.mark.parametrize("target", ["cpu", "sm_90a", "sm_80"])
@pytest.mark.parametrize("name", NAMES)
def test_every_example(name: str, target: str) -> None:
    plan, remarks = example(name, target)
    facts, memory = explained(name, target)
    text = as_text(facts, memory)
    source = (EXAMPLES / f"{name}.dn").read_text()
    page = as_page("Model", f"{name}.dn", source, {"a": 1}, [(target, facts, memory)], remarks)
    shown = Page(page)
    assert all(link.startswith("#") and link[1:] in shown.ids for link in shown.links)
    assert not re.search(r"https?:|<script|@import|url\(", page)
    for wanted in (
        *(segment.name for segment in plan.segments),
        *(p.name for p in plan.program.parameters),
        *(opcode.name for opcode in plan.opcodes),
        *(line for line in facts.cost),
        f"{memory.largest:,}",
    ):
        assert wanted in text and " ".join(wanted.split()) in shown.text, wanted
    assert all(" ".join(remark.message.split()) in shown.text for remark in remarks)
    assert memory.sample > 0 and memory.vertices >= 1 and memory.largest > 1000


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_120"])
@pytest.mark.parametrize("name", NAMES)
def test_the_map(name: str, target: str) -> None:
    """Blocks do not overlap, fill no more than there is, hold every placed weight; rows are shared out."""
    plan, _ = example(name, target)
    chip = gather(plan).on_chip
    assert chip is not None and plan.tiling is not None and len(chip.workers) == plan.tiling.workers
    for blocks, room in ((chip.register_blocks, chip.registers), (chip.shared_blocks, chip.shared)):
        for turn in range(max((block.turns for block in blocks), default=1)):
            at = 0
            there = [block for block in blocks if block.turns == 1 or block.turn == turn]
            for block in sorted(there, key=lambda block: block.first):
                assert at <= block.first and block.size >= 0
                at = block.first + block.size
            assert at <= room
    held = {b.name for b in (*chip.register_blocks, *chip.shared_blocks) if b.is_weight}
    placed = {p.parameter for p in plan.placements if p.residency in ("register", "shared")}
    assert held == placed | {name for name, _, _ in shared_memory(plan).vectors}
    for place in plan.placements:
        own = [(b, e) for w in chip.workers for name, b, e in w.rows if name == place.parameter]
        assert sum(end - begin for begin, end in set(own)) >= place.units
    drawn = picture(chip)
    assert len(drawn.rectangles) == len(chip.workers) * len((*chip.register_blocks, *chip.shared_blocks))
    for part in drawn.rectangles:
        assert min(part.x, part.y) >= 0
        assert part.x + part.width <= drawn.width + 1 and part.y + part.height <= drawn.height
    colours = [colour for _, colour in drawn.legend]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("name", ["treelstm", "bilstm_tagger", "childsum", "attention"])
def test_the_largest_batch_is_one_that_fits(name: str) -> None:
    path = EXAMPLES / f"{name}.dn"
    small = {"hidden": 8, "embed": 8, **({"targets": 11} if name == "attention" else {})}
    program = transform(load_program(Source(str(path), path.read_text()), small)[0], PlanOptions())
    plan = make_plan(program, "cpu")
    forest = ForestGrower(program, 1).grow(32, 8)
    rows = {p.name: 11 for p in program.parameters if p.kind == "table"}
    memory = 12 * 2**20
    found = memory_facts(plan, forest, rows, memory, "random trees")
    assert found.largest > 100

    def fits(samples: int) -> bool:
        chosen = forest.select(np.arange(samples, dtype=np.int32) % forest.samples)
        numbers = np.arange(samples, dtype=np.int32)
        probe = Encoder(prepare(plan, chosen), static_pool(plan, rows, 2**24), shares_rows=False).encode(
            numbers
        )
        pool = static_pool(plan, rows, len(probe.words))
        try:
            encoder = Encoder(prepare(plan, chosen), pool, shares_rows=False)
            encoder.encode(numbers, pool_words=int(memory * found.share) // 4)
        except DoesNotFit:
            return False
        return True

    assert fits(int(found.largest * 0.95)) and not fits(int(found.largest * 1.05))


def test_activations_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes a row of every space, times its rows, are what a batch allocates."""
    plan, _ = example("treelstm", "cpu")
    facts = gather(plan)
    forest = ForestGrower(plan.program, 2).grow(40, 9)
    rows = {"E": 11}
    pool = static_pool(plan, rows, 2**22)
    schedule = Encoder(prepare(plan, forest), pool).encode(np.arange(40, dtype=np.int32))
    predicted = sum(
        space.row * schedule.rows[space.name] for space in facts.spaces if space.name in schedule.rows
    )
    tables = sum(11 * table.width * 4 for table in plan.table_gradients)
    assert predicted <= schedule.activations * 4 <= predicted + tables + 2**16


def test_command_line(command, workplace):
    done = command("explain build --html out.html --data train.jsonl --memory 16")
    assert (done.code, done.out, done.error) == (0, "", "wrote out.html\n")
    page = Page((workplace / "out.html").read_text(encoding="utf-8"))
    assert "largest batch in 16.0 GiB" in page.text and "Samples as in train.jsonl" in page.text
    assert "#target-2" in page.links and "The product" not in page.text
    text = command("explain build --memory 0.001").out
    assert "largest batch in 0.0 GiB: " in text and "a made-up sample: " in text
    assert (
        "reach" not in text
        and " such samples (addresses reach 32 GiB)" in command("explain build --memory 80").out
    )


def test_the_memory_that_a_batch_has(command, workplace, monkeypatch):
    """Where nobody says: of a GPU what those have that are bought for it, of a CPU that of the machine."""
    monkeypatch.setattr("dnc.api.reports.machine_memory", lambda: 3 * 2**30)
    for target, room in (("cpu", "3.0"), ("cuda:sm_90a", "80.0")):
        assert f"largest batch in {room} GiB" in command(f"explain build --target {target}").out


@pytest.mark.parametrize(
    "options, message",
    [
        ("--html build", "error: build: is a directory, expected a file to write"),
        ("--html no/out.html", "error: no/out.html: there is no directory no"),
        ("--html build/out.html", "error: build/out.html: lies in the build"),
        ("--memory -1", "error: Invalid value for '--memory': found -1, expected 0 or more (see "),
        ("--memory many", "error: Invalid value for '--memory': found 'many', expected a number (see "),
        ("--data none.jsonl", "none.jsonl: error: there is no such file"),
        ("--batch 3", "error: --batch goes with --schedule and --candidates"),
        ("--batch 3 --data train.jsonl", "error: --batch goes with --schedule and --candidates"),
        ("--batch 3 --schedule", "error: --batch goes with --data: without data there is one made-up sample"),
        ("--html out.html --schedule", "error: --schedule and --html exclude each other"),
        ("--html out.html --candidates", "error: --candidates and --html exclude each other"),
        ("--html train.jsonl --data train.jsonl", "error: train.jsonl: is read here too and would be lost"),
    ],
)
def test_mistakes(command, options, message):
    done = command(f"explain build {options}")
    assert done.code == 2 and done.out == "" and done.error.startswith(message), done.error


def test_a_page_does_not_replace_the_program(command, workplace):
    text = (EXAMPLES / "treelstm.dn").read_text()
    (workplace / "own.dn").write_text(text)
    assert command("compile own.dn -o own --target cpu --set hidden=4,embed=4").code == 0
    done = command("explain own --html own.dn")
    assert done.code == 2 and "own.dn: is read here too" in done.error
    assert (workplace / "own.dn").read_text() == text


def test_why_it_is_fast():
    facts, memory = explained("treelstm", "sm_90a")
    launch, level, chip, hoisted, small = facts.why
    assert "one launch: forward, backward and update" in launch and facts.why[0] in as_text(facts, memory)
    assert "2 instructions and 2 exchanges" in level and "U in registers" in chip and "W @ x" in hoisted
    assert "at most 64 rows" in small and not any(
        "Small" in each for each in explained("treelstm", "cpu")[0].why
    )
    page = as_page("m", "m.dn", "", {}, [("t", facts, memory)], ())
    assert "<li>A batch is one launch" in page and "<td>words x 256</td>" in page
    call, level, *_ = explained("treelstm", "cpu")[0].why
    assert "one call of compiled code" in call
    assert "2 instructions for all vertices of a replica at once; cores that share one make 2 ex" in level
    facts, memory = explained("treelstm", "cpu")
    assert "  U [1280, 512]: STREAMED, 2560.0 KiB, the caches of the core hold" in as_text(facts, memory)
    assert '<th class="n">KiB</th>' in as_page("m", "m.dn", "", {}, [("t", facts, memory)], ())


def test_a_build_that_is_damaged(command, workplace):
    """Not silently explained: dnc run refuses the kernels."""
    made = attrs.evolve(read_build("build"), path=Path("full"))
    write_build(made, {"cpu": {"kernel.tirx": b"[]"}})
    assert command("explain full").code == 0
    kernel = workplace / "full" / "cpu" / "kernel.tirx"
    kernel.write_bytes(b"[")
    damaged = "error: full/cpu/kernel.tirx: the build is damaged here; compile it again\n"
    for options in ("", " --html out.html", " --target cpu"):
        done = command(f"explain full{options}")
        assert (done.code, done.out, done.error) == (2, "", damaged) and not Path("out.html").exists()
    kernel.unlink()
    missing = "error: full/cpu/kernel.tirx: is missing from the build; compile it again\n"
    assert command("explain full").error == missing
    kernel.parent.rmdir()
    assert command("explain full").error == missing
    assert command("explain full --target cuda").code == 0  # these kernels are whole


def test_what_a_user_writes_is_text_not_markup():
    facts, memory = explained("treelstm", "sm_90a")
    source = '# <script>alert(1)</script> & "quotes"\n'
    page = as_page("<b>", "a&b.dn", source, {}, [("t", facts, memory)], ())
    assert "<script" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page and "a&amp;b.dn" in page


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_meetings_of_all_workers_are_those_of_the_schedule(target, mode):
    program = read_program(EXAMPLES / "treelstm.dn", {"embed": 8, "hidden": 8})[1]
    plan = make_plan(transform(program, PlanOptions(mode=mode)), target, PlanOptions(mode=mode))
    forest = ForestGrower(plan.program, 1).grow(4, 3)
    facts = memory_facts(plan, forest, {"E": 50}, 2**30, "random trees")
    text = explain_schedule(plan, forest, {"E": 50}, 4)
    assert f"once a batch: {facts.grid_exchanges}" in as_text(gather(plan), facts)
    assert facts.grid_exchanges == text.split("replica 1:")[0].count("grid_barrier") > 0


def test_more_parameters_than_a_word_of_a_schedule_counts():
    sizes = {"embed": 8, "hidden": 20000}
    plan = make_plan(transform(read_program(EXAMPLES / "treelstm.dn", sizes)[1]), "cpu")
    with pytest.raises(DiagnosticError, match=r"4,0[\d,]+ numbers that are trained, expected at most 2,147,"):
        memory_facts(plan, ForestGrower(plan.program, 1).grow(4, 3), {"E": 50}, 2**30, "random trees")

"""What the compiler made of a model, as one self-contained page: `dnc explain --html`.

In: facts of a build's targets, remarks, the source. Out: the text of an HTML file that needs no network:
no script, style and pictures inside. The map of a worker's registers and shared memory, with weights in
colour, is that of VPPS (figure 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from dnc.explain.facts import Block, OnChip, PlanFacts, WorkerMap
from dnc.explain.memory import MemoryFacts
from dnc.ir.remarks import Remark
from dnc.version import VERSION

TEMPLATE = "page.html.j2"
# Of the map, in pixels: where the bars begin, their widths, and the height of a worker by their number.
LABEL, REGISTERS, GAP, SHARED = 76, 300, 24, 560
TALL, SHORT, MANY_WORKERS = 18, 7, 32
OTHER = "#d8d8d8"


@attrs.frozen
class Rectangle:
    """A piece of a picture; title: what is shown when one points at it. label: inside, "" if too small."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str
    label: str


@attrs.frozen
class Picture:
    """The map of all workers of a replica."""

    width: int
    height: int
    bar: int
    rectangles: tuple[Rectangle, ...]
    labels: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    registers_at: int = LABEL
    shared_at: int = LABEL + REGISTERS + GAP


@attrs.frozen
class Section:
    """A target on the page."""

    facts: PlanFacts
    memory: MemoryFacts
    picture: Picture | None
    remarks: tuple[Remark, ...]


@attrs.frozen
class Line:
    """A line of the source, with the remarks on it."""

    number: int
    text: str
    remarks: tuple[Remark, ...]


def as_page(
    model: str,
    source_name: str,
    source: str,
    settings: Mapping[str, int],
    targets: Sequence[tuple[str, PlanFacts, MemoryFacts]],
    remarks: Sequence[Remark],
) -> str:
    """The page. targets: by their names."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("dnc.explain", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [
        Section(
            facts,
            memory,
            None if facts.on_chip is None else picture(facts.on_chip),
            tuple(remark for remark in remarks if remark.target in ("", name)),
        )
        for name, facts, memory in targets
    ]
    return environment.get_template(TEMPLATE).render(
        model=model,
        source_name=source_name,
        settings=settings,
        version=VERSION,
        sections=sections,
        lines=_lines(source, remarks),
    )


def _lines(source: str, remarks: Sequence[Remark]) -> list[Line]:
    found: dict[int, dict[str, Remark]] = {}
    for remark in remarks:
        if remark.span is not None:  # of several targets one stands for all that say the same
            found.setdefault(remark.span.line, {}).setdefault(remark.message, remark)
    return [
        Line(number, text, tuple(found.get(number, {}).values()))
        for number, text in enumerate(source.rstrip("\n").split("\n"), 1)
    ]


def picture(chip: OnChip) -> Picture:
    """The map: a row a worker, its registers on the left, its shared memory on the right."""
    height = TALL if len(chip.workers) <= MANY_WORKERS else SHORT
    bar = height - 2
    names = dict.fromkeys(
        block.name for block in (*chip.register_blocks, *chip.shared_blocks) if block.is_weight
    )
    colours = {name: colour(index) for index, name in enumerate(names)}
    found: list[Rectangle] = []
    labels = []
    for worker in chip.workers:
        y = worker.rank * height
        if height == TALL or worker.rank % 8 == 0:
            labels.append((y + bar / 2, f"worker {worker.rank}"))
        bars = (
            (chip.register_blocks, LABEL, REGISTERS / max(chip.registers, 1), "register", 1),
            (chip.shared_blocks, LABEL + REGISTERS + GAP, SHARED / max(chip.shared, 1), "KiB", 1024),
        )
        for blocks, left, scale, unit, size in bars:
            for block in blocks:
                part = bar / block.turns
                is_large = block.turns == 1 and height == TALL and block.size * scale > 40
                found.append(
                    Rectangle(
                        round(left + block.first * scale, 2),
                        round(y + block.turn * part, 2),
                        round(max(block.size * scale, 0.5), 2),
                        round(part, 2),
                        colours.get(block.name, OTHER),
                        _title(block, worker, unit, size),
                        block.name if block.is_weight and is_large else "",
                    )
                )
    width = LABEL + REGISTERS + GAP + SHARED
    legend = (*colours.items(), ("schedule and staging", OTHER))
    return Picture(width, len(chip.workers) * height, bar, tuple(found), tuple(labels), legend)


def _title(block: Block, worker: WorkerMap, unit: str, size: int) -> str:
    amount = f"{block.size / size:,.0f} {unit}{'s' if unit == 'register' and block.size != 1 else ''}"
    text = f"worker {worker.rank}: {block.name}, {amount}" + (" a thread" if unit == "register" else "")
    if block.turns > 1:
        text += f", during recursion {block.turn + 1}"
    for parameter, begin, end in worker.rows:
        if block.is_weight and parameter == block.name:
            text += f", units {begin} to {end - 1}" if begin < end else ", no units"
    return text


def colour(index: int) -> str:
    """A colour that differs from its neighbours: steps of the golden angle."""
    return f"hsl({index * 137.5 % 360:.0f} 62% {58 - 8 * (index // 8 % 2)}%)"

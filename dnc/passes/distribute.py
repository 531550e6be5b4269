"""Which distribution every value of a stage has, and which segment every operation belongs to.

In: a stage's cell. Out: a `Distribution`: for every value how it comes about (its kind), in which step,
and in which group of operations, which becomes a segment. Guaranteed: an operation reads what another
distribution made only in a later step; without joining, every operation is a group of its own.

The kind of a value decides: what a stage is given is complete; a product with a parameter needs a
complete operand and yields units; element-wise operations keep units; a transposed product takes units
and yields partial sums; everything else needs whole vectors and runs vertex by vertex.

Of the recursion, what a product needs whole and what follows from complete values alone may be repeated:
every worker makes all units of it, so that the product needs no exchange. So may scalars be that whole
vectors are reduced to: what is shared out by units reads them without an exchange then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.opdef import ELEMENTWISE, LIST, WHOLE
from dnc.ir.ops import OPS
from dnc.ir.plan import UNIT, VERTEX
from dnc.ir.program import LEVEL, GradientInput, ParameterInput, Stage
from dnc.ir.remarks import Remarks
from dnc.ir.types import ListType, TensorType

INPUT, CONSTANT, VIEW, PARTIAL = "input", "constant", "view", "partial"
EVERYWHERE = "everywhere"  # a scalar that every worker makes for itself
MAX_GATES = 16
NARROW = 64
"""Elements of vectors that one warp goes through sooner than workers meet: two a lane."""
MADE = (UNIT, VERTEX, PARTIAL, EVERYWHERE)  # kinds of what segments make
VERTEX_FLOATS = 8192
CHEAP = 4
"""Operations an element of what is worked out once more, by every worker in whole, and not read."""
NEVER = 1 << 30


def is_scalar_list(value: Value) -> bool:
    """Whether a value is a list of scalars."""
    return isinstance(value.type, ListType) and not value.type.element.shape


@attrs.frozen
class FuseOptions:
    """How a program is cut. `enabled` joins operations; `vertex_floats`, the largest sum of weights of a
    stage outside the recursion that is still computed vertex by vertex; `repeats`: whether every worker
    makes what a product of the recursion needs whole, where that follows from complete values, and saves an
    exchange; `reduces`: the same of the scalars that vectors of the recursion are reduced to."""

    enabled: bool = True
    vertex_floats: int = VERTEX_FLOATS
    repeats: bool = False
    reduces: bool = False


class Distribution:
    """`kind` and `step` say for every value how and when it comes about; `group` what it shares."""

    def __init__(
        self,
        cell: Cell,
        matrices: Mapping[Value, ParameterInput],
        stage: Stage,
        options: FuseOptions,
    ) -> None:
        """matrices: the inputs that are parameters of two dimensions."""
        self.cell, self.matrices, self.joins = cell, matrices, options.enabled
        self.ops = cell.definitions()
        self.kind: dict[Value, str] = {}
        self.step: dict[Value, int] = {}
        self.group: dict[Value, int] = {}
        self.too_few: dict[Value, int] = {}  # values not shared out by units, for there are so few
        self.repeated: set[Value] = set()  # values of which every worker makes all units
        self.follows = False  # whether what reads a whole vector is made with it
        self.reduces = False  # whether every worker may reduce whole vectors for itself
        self.puts_off = self.joins and stage.placement == LEVEL
        self.whole_from: dict[Value, int] = {}  # the first step in which a worker can have all of a value
        bound = zip(cell.inputs, stage.inputs, strict=True)
        self.sums = {value for value, source in bound if isinstance(source, GradientInput)}
        vertex = set() if stage.placement == LEVEL else self._small_stage(options.vertex_floats)
        while True:
            self._classify(vertex)
            wide = self._too_wide()
            if not wide:
                break
            vertex |= wide.keys()
            self.too_few |= wide
        self.repeatable: set[Value] = set()
        if self.joins and stage.placement == LEVEL:
            self._save_exchanges(vertex)
            if options.reduces:
                self._reduce_everywhere(vertex)
            if not self.reduces:
                self.repeatable = self._repeatable()
        if options.repeats and self.repeatable:
            self.repeated = self.repeatable
            self._classify(vertex)
            if self._too_wide():
                self.repeated = set()
                self._classify(vertex)

    def _save_exchanges(self, vertex: set[Value]) -> None:
        """Computes vertex by vertex what stands behind or before what needs whole vectors, where these are
        narrow and that leaves fewer steps: what would be shared out by units again, and what follows from
        complete values, which is added to `vertex`. (Of 1,024 elements a warp has so much to do that eight
        meetings are sooner over.)"""
        steps = max(self.step.values(), default=0)
        if steps == 0 or VERTEX not in self.kind.values():
            return
        complete: set[Value] = set()  # without a product
        whole = {value for value, kind in self.kind.items() if kind == VERTEX}  # and what may follow it
        before: set[Value] = set()  # those complete ones that it is made of
        for op in self.cell.ops:
            if self.kind[op.result] == UNIT and op.opcode != "matmul" and self._is_narrow(op):
                sources = [source for operand in op.operands for source in self.behind_views(operand)]
                if all(self.kind[source] != UNIT or source in complete for source in sources):
                    complete.add(op.result)
                if not whole.isdisjoint(sources):
                    whole.add(op.result)
        for op in reversed(self.cell.ops):
            if op.result in whole or op.result in before:
                before |= complete & {s for operand in op.operands for s in self.behind_views(operand)}
        for self.follows, moved in ((True, before), (True, set()), (False, before)):
            self._classify(vertex | moved)
            if max(self.step.values()) < steps:
                vertex |= moved
                return
        self.follows = False
        self._classify(vertex)

    def _reduce_everywhere(self, vertex: set[Value]) -> None:
        """Has every worker reduce whole vectors to the scalars that its units need, where that leaves fewer
        steps; what nothing in the same step reads by units stays with one worker."""
        steps, alone = max(self.step.values(), default=0), set[Value]()
        if steps == 0 or VERTEX not in self.kind.values():
            return
        self.reduces = True
        while True:
            self._classify(vertex | alone)
            unread = self._unread_here()
            if not unread:
                break
            alone |= unread
        if max(self.step.values()) >= steps or self._too_wide():
            self.reduces = False
            self._classify(vertex)

    def _unread_here(self) -> set[Value]:
        """Scalars of all workers that nothing of their step reads by units, nor with another such scalar."""
        read = set[Value]()
        for op in reversed(self.cell.ops):
            kind = self.kind[op.result]
            if kind in (UNIT, PARTIAL) or (kind == EVERYWHERE and op.result in read):
                read |= {v for v in op.operands if self.step[v] == self.step[op.result]}
        return {value for value, kind in self.kind.items() if kind == EVERYWHERE} - read

    def _repeatable(self) -> set[Value]:
        """What a product needs whole and follows from complete values, with all that this takes."""
        wanted = [
            source
            for op in self.cell.ops
            if op.opcode == "matmul" and self.kind[op.result] == UNIT
            for source in self.behind_views(op.operands[1])
            if self.kind[source] == UNIT and self.step[source] == 0
        ]
        found: set[Value] = set()
        while wanted:
            value = wanted.pop()
            if self.kind[value] != UNIT or value in found:
                continue
            found.add(value)
            wanted += [source for v in self.ops[value].operands for source in self.behind_views(v)]
        return set() if any(isinstance(value.type, ListType) for value in found) else found

    def is_repeated(self, value: Value, user: Op) -> bool:
        """Whether a product reads a value that its own worker has made in whole."""
        together = value in self.repeated and self.step[value] == self.step[user.result]
        return together and user.opcode == "matmul" and self.kind[user.result] == UNIT

    def _small_stage(self, vertex_floats: int) -> set[Value]:
        """All values, if the stage has few weights and anything to gain from whole vectors."""
        used = {op.operands[0] for op in self.cell.ops if op.operands}
        if sum(value.tensor.size for value in self.matrices if value in used) > vertex_floats:
            return set()
        products = [op for op in self.cell.ops if set(op.operands) & set(self.matrices)]
        reductions = [op for op in self.cell.ops if not self._unit_legal(op)]
        return {op.result for op in self.cell.ops} if products or reductions else set()

    def _unit_legal(self, op: Op) -> bool:
        traits = OPS[op.opcode].traits
        if op.opcode in ("matmul", "matmul_t"):
            matrix, vector = op.operands
            return matrix in self.matrices and len(vector.tensor.shape) == 1 and not self._is_constant(vector)
        if op.opcode in ("slice", "concat") and len(op.result.tensor.shape) != 1:
            return False
        if op.opcode == "slice":
            begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
            size = end - begin
            return op.operands[0].tensor.size % size == 0 and begin % size == 0
        if op.opcode == "concat":
            return len({value.tensor.size for value in op.operands}) == 1
        if LIST in traits:
            return len(op.result.tensor.shape) == 1 and WHOLE not in traits
        return ELEMENTWISE in traits and len(op.result.tensor.shape) == 1

    def _is_shared_out(self, op: Op) -> bool:
        """Whether units of the result may be shared out: also not where a list is read that is made vertex by
        vertex, as no buffer holds it."""
        made = (value for value in op.operands if isinstance(value.type, ListType))
        return self._unit_legal(op) and all(self.kind[value] != VERTEX for value in made)

    def _is_constant(self, value: Value) -> bool:
        """Whether no buffer holds a value: what many workers take a product with is read."""
        return value in self.ops and not self.ops[value].operands

    def _classify(self, vertex: set[Value]) -> None:
        self.kind, self.step, self.whole_from = {}, {}, {}
        for value in self.cell.inputs:
            self.kind[value], self.step[value] = INPUT, 0
            self.whole_from[value] = NEVER if value in self.sums else 0
        for op in self.cell.ops:
            value = op.result
            if not op.operands:
                self.kind[value], self.step[value] = CONSTANT, 0
            elif op.opcode in ("slice", "concat") and self._is_view(op, vertex):
                self.kind[value] = VIEW
                self.step[value] = max(self.step[v] for v in op.operands)
            elif value not in vertex and self._is_shared_out(op) and not self._follows(op):
                self.kind[value] = PARTIAL if op.opcode == "matmul_t" else UNIT
                whole = op.opcode == "matmul"
                self.step[value] = max(self._ready(v, UNIT, whole) for v in op.operands)
            elif value not in vertex and self._is_scalar(op):
                self.kind[value] = EVERYWHERE
                self.step[value] = max(self.whole_from[v] for v in op.operands)
            else:
                self.kind[value] = VERTEX
                self.step[value] = max(self._ready(v, VERTEX, False) for v in op.operands)
            self.whole_from[value] = self._whole_from(op)
        if self.puts_off:
            self._put_off()
        self._connect()

    def _put_off(self) -> None:
        """Has what needs nothing but complete values made where units of it are first read: its result goes
        through no buffer then."""
        can_wait: set[Value] = {value for value in self.cell.inputs if value not in self.sums}
        for op in self.cell.ops:
            if self.kind[op.result] == CONSTANT or (
                self.kind[op.result] == UNIT and op.opcode != "matmul" and can_wait.issuperset(op.operands)
            ):
                can_wait.add(op.result)
        can_wait.difference_update(self.cell.results)
        read: dict[Value, int] = {}
        for op in reversed(self.cell.ops):
            value, kind = op.result, self.kind[op.result]
            if kind == UNIT and value in can_wait and read.get(value, 0) > self.step[value]:
                self.step[value] = read[value]
            by_units = kind in (UNIT, PARTIAL) and op.opcode != "matmul"
            for operand in op.operands:
                at = self.step[value] if by_units else self.step[operand]
                read[operand] = min(at, read.get(operand, at))

    def _is_scalar(self, op: Op) -> bool:
        """Whether every worker may make the result for itself: a number, of vectors it can have in whole."""
        types = [value.type for value in (op.result, *op.operands)]
        return (
            self.reduces
            and op.result.tensor.shape == ()
            and op.result.tensor.dtype == "f32"
            and all(isinstance(each, TensorType) and len(each.shape) < 2 for each in types)
            and all(self.whole_from[value] < NEVER for value in op.operands)
        )

    def _whole_from(self, op: Op) -> int:
        """When a worker can have all of a value: by reading it, or by working out once more what takes less
        than an exchange; sums of what others left are read by one."""
        kind, ready = self.kind[op.result], self._ready(op.result, VERTEX, True)
        if kind in (CONSTANT, EVERYWHERE):
            return self.step[op.result]
        if self.is_partial(op.result) or any(v in self.sums for v in self.behind_views(op.result)):
            return NEVER
        definition = OPS[op.opcode]
        if kind != UNIT or ELEMENTWISE not in definition.traits or LIST in definition.traits:
            return ready
        cost = definition.flops(tuple(value.type for value in op.operands), op.result.type)
        if cost > CHEAP * op.result.tensor.size:
            return ready
        return min(ready, max(self.whole_from[value] for value in op.operands))

    def _follows(self, op: Op) -> bool:
        """Whether an operation without a product is made vertex by vertex, as it can be sooner so."""
        if not self.follows or op.opcode in ("matmul", "matmul_t") or not self._is_narrow(op):
            return False
        with_it, by_units = (max(self._ready(v, k, False) for v in op.operands) for k in (VERTEX, UNIT))
        return with_it < by_units

    def _is_narrow(self, op: Op) -> bool:
        return all(value.tensor.size <= NARROW for value in (op.result, *op.operands))

    def _is_view(self, op: Op, vertex: set[Value]) -> bool:
        """A slice of something complete or partial, or a concat that only products read."""
        if len(op.result.tensor.shape) != 1:
            return False
        if op.opcode == "slice":
            source = op.operands[0]
            if not self.joins:  # what is stored is an operation, unless it is a partial sum
                return op.result not in self.cell.results or self.is_partial(source)
            return self.kind[source] in (INPUT, PARTIAL) or (
                self.kind[source] == VIEW and self.ops[source].opcode == "slice"
            )
        users = [user for user in self.cell.ops if op.result in user.operands]
        return (
            op.result not in self.cell.results
            and not any(self._is_constant(value) for value in op.operands)
            and bool(users)
            and all(
                user.opcode == "matmul" and user.operands[0] in self.matrices and user.result not in vertex
                for user in users
            )
        )

    def _ready(self, value: Value, kind: str, whole: bool) -> int:
        """The first step in which an operation of `kind` can use `value`."""
        have = self.kind[value]
        if have in (INPUT, CONSTANT):
            return 0
        if have == VIEW:
            return max(self._ready(v, kind, True) for v in self.ops[value].operands)
        if value in self.repeated and kind == UNIT:
            return 0
        joined = self.joins or isinstance(value.type, ListType)  # no buffer holds a list
        same = (have == kind or (have, kind) == (EVERYWHERE, UNIT)) and not whole and joined
        return self.step[value] + (0 if same else 1)

    def _connect(self) -> None:
        """Groups the operations of one step and kind that share values: a segment each."""
        self.group = {}
        parent: dict[Value, Value] = {}

        def find(value: Value) -> Value:
            while parent.setdefault(value, value) != value:
                value = parent[value]
            return value

        last: dict[tuple[int, str], Value] = {}
        for op in self.cell.ops:
            value = op.result
            if self.kind[value] not in MADE:
                continue
            find(value)
            for operand in op.operands:
                joined = self.joins or isinstance(operand.type, ListType)
                if joined and self.inside(operand, value):
                    parent[find(operand)] = find(value)
                for source in self.behind_views(operand):
                    if self.is_repeated(source, op):
                        parent[find(source)] = find(value)
            if not self.joins:
                continue
            if self.kind[value] == VERTEX:
                shared = [VERTEX]
            else:
                shared = [v.name for v in op.operands if v in self.sums]  # which are added up once
                if op.opcode == "matmul":  # products of one operand share its staging
                    shared.append(f"{op.operands[1].name} {value.tensor.size}")
            for what in shared:
                key = (self.step[value], what)
                if key in last:
                    parent[find(last[key])] = find(value)
                last[key] = value
        numbers: dict[Value, int] = {}
        for op in self.cell.ops:
            if op.result in parent:
                self.group[op.result] = numbers.setdefault(find(op.result), len(numbers))

    def inside(self, operand: Value, user: Value) -> bool:
        """Whether `user` reads `operand` without an exchange."""
        if self.kind[operand] in (INPUT, CONSTANT, VIEW, PARTIAL):
            return False
        want = UNIT if self.kind[user] == PARTIAL else self.kind[user]
        op = self.ops[user]
        return (
            (self.kind[operand] == want or {self.kind[operand], want} == {EVERYWHERE, UNIT})
            and self.step[operand] == self.step[user]
            and not (op.opcode == "matmul" and want == UNIT)
        )

    def units(self, values: list[Value]) -> int:
        """The unit width of a segment: what divides every width and every slice."""
        found = 0
        for value in values:
            op = self.ops.get(value)
            if self.kind[value] == PARTIAL:
                found = math.gcd(found, op.operands[1].tensor.size)  # type: ignore[union-attr]
                continue
            if len(value.tensor.shape) == 1:
                found = math.gcd(found, value.tensor.size)
            if op is not None and op.opcode == "slice":
                begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
                found = math.gcd(math.gcd(found, begin), end)
            if op is not None and op.opcode not in ("matmul", "matmul_t"):
                for operand in op.operands:
                    if len(operand.tensor.shape) == 1:
                        found = math.gcd(found, operand.tensor.size)
        return max(found, 1)

    def _too_wide(self) -> dict[Value, int]:
        """Values of unit groups with too few units to be worth sharing out, and how many these are."""
        found: dict[Value, int] = {}
        for group in set(self.group.values()):
            values = [v for v in self.group if self.group[v] == group]
            if self.kind[values[0]] == VERTEX:
                continue
            units = self.units(values)
            widest = max(
                self.ops[v].operands[1].tensor.size if self.kind[v] == PARTIAL else v.tensor.size
                for v in values
            )
            if widest > MAX_GATES * units:
                found |= dict.fromkeys(values, units)
        return found

    # ---- why ------------------------------------------------------------------------------------

    def remark(self, stage: Stage, remarks: Remarks) -> None:
        """Where the stage is cut, and which products with parameters are not shared out by units."""
        often = "at every level" if stage.placement == LEVEL else "once a batch"
        for op in self.cell.ops:
            if self.group.get(op.result) is None:
                continue
            reason = self._cut_before(op)
            if reason:
                text = f"'{stage.name}' is cut before this, with an exchange {often}: {reason}"
                remarks.add(stage.name, text, op.span or stage.span)
            whole = [source for v in op.operands for source in self.behind_views(v)]
            if any(self.is_repeated(source, op) for source in whole):
                text = (
                    f"every worker makes in '{stage.name}' all of the vector that this product needs whole: "
                    f"that saves an exchange {often}"
                )
                remarks.add(stage.name, text, op.span or stage.span)
            names = [self.matrices[value].parameter for value in op.operands if value in self.matrices]
            if self.kind[op.result] == VERTEX and stage.placement == LEVEL and names:
                text = f"{names[0]} is not shared out among the workers: {self._whole(op)}"
                remarks.add(stage.name, text, op.span or stage.span)

    def _cut_before(self, op: Op) -> str:
        """Why an operation cannot follow what makes its operands on the same worker; "" if it can.

        Only the operands that it waits for count, not those that were made long before.
        """
        user, whole = self.kind[op.result], op.opcode == "matmul"
        kind = VERTEX if user == VERTEX else UNIT
        for operand in op.operands:
            ready = self.whole_from[operand] if user == EVERYWHERE else self._ready(operand, kind, whole)
            if ready < self.step[op.result]:
                continue
            for source in self.behind_views(operand):
                have = self.kind[source]
                if have not in MADE or self.step[source] == self.step[op.result]:
                    continue
                if have == PARTIAL:
                    return "it reads sums of which every worker has a part"
                if have == VERTEX:
                    return "it is shared out by units, and reads what is computed vertex by vertex"
                if user == EVERYWHERE:
                    return f"{self._whole(op)}, which every worker reduces for itself"
                if user == VERTEX:
                    return self._whole(op)
                text = "the product needs a whole vector, of which every worker has made its units"
                return f"{text}; with --repeat it makes all of them" if source in self.repeatable else text
        return ""

    def behind_views(self, value: Value) -> list[Value]:
        """The values behind views."""
        if self.kind[value] != VIEW:
            return [value]
        return [source for operand in self.ops[value].operands for source in self.behind_views(operand)]

    def _whole(self, op: Op) -> str:
        """Why an operation is computed vertex by vertex."""
        if op.result in self.too_few:
            few = self.too_few[op.result]
            return f"its vectors divide into {few} units at most, {MAX_GATES} gates to a unit"
        return f"'{op.opcode}' needs whole vectors"

    def is_partial(self, value: Value) -> bool:
        """Whether a value is a sum that has partial terms."""
        if self.kind[value] == VIEW and self.ops[value].opcode == "slice":
            return self.is_partial(self.ops[value].operands[0])
        if self.kind[value] == PARTIAL:
            return True
        op = self.ops.get(value)
        return op is not None and op.opcode == "add" and any(self.is_partial(v) for v in op.operands)

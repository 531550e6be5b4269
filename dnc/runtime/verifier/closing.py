"""What stands behind the first barrier of the grid: gradients, sums, norm and update.

In: a schedule whose queues are right, and these instructions. Out: what they leave behind: touched rows of
tables, chunks, norms. Guaranteed: every gradient is made of every row once, every norm is somebody's.
"""

from __future__ import annotations

from dnc.ir import cutting, isa
from dnc.ir.isa import float_bits
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import DenseGradient, Result
from dnc.runtime.phases import trains
from dnc.runtime.verifier.meeting import Meeting
from dnc.runtime.verifier.text import Ints, Text, need


class Closing:
    """early: rows added up before, by gradient. tokens: touched rows by table. first: by a product's
    buffer of sums the rows that were summed. chunks: arenas of gradients. norms: how many there are."""

    def __init__(self, text: Text, early: dict[str, int]) -> None:
        self.text, self.early = text, early
        self.tokens: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.summed: dict[str, int] = {}
        self.chunks, self.norms = 1, 0

    def check(self, tail: Ints) -> None:
        """Fields of gradients, sums, norm and update."""
        names = [self.text.plan.opcodes[int(number)].name for number in tail[:, 0]]
        known = self.text.known
        dense, tables, products, along = known.dense, known.tables, known.products, known.along
        norm_groups = iter(known.norm_groups)
        norms, sums, updated = known.norm_count, [], list[dict[str, int]]()
        norms_before, meeting, most_norms = 0, Meeting(self.text, names, tail), 0
        buffers = dict[int, list[Result]]()  # one without rows begins where the next one does
        for result in self.text.plan.results:
            if result.kind in ("loss", "metric") and result.buffer in self.text.bases:
                buffers.setdefault(self.text.bases[result.buffer], []).append(result)
        rows_of = list(zip(names, tail.tolist(), strict=True))
        chunks = dict[str, int]()  # by parameter
        self.summed = dict.fromkeys(dense, 0) | self.early
        outer = isa.OUTER in names
        if outer:
            found = tail[tail[:, 0] == self.text.number[isa.OUTER]]
            norms = self._outer_norms(found)
            names += [each.name for number in found[:, 1].tolist() for each in self._made_by(number)]
        names += [along[name].name for name in names if name in along and along[name].name not in names]
        for name, row in rows_of:
            need(name not in self.text.segments, f"segment '{name}' stands behind a barrier of the grid")
            fields = dict(zip(self.text.plan.opcodes[row[0]].fields, row[1:], strict=False))
            need(
                fields.get("accumulate", 0) in (0, 1), f"'{name}': 'accumulate' is {fields.get('accumulate')}"
            )
            count = fields.get("chunks", 1)
            need(0 < count <= isa.MOST_CHUNKS, f"'{name}': 'chunks' is {count}")
            worker = fields.get("first_worker", 0)
            workers = self.text.sharers if name == isa.OUTER else self.text.grid
            need(0 <= worker < workers, f"'{name}': no worker {worker}")
            if name in dense:
                need(not outer, f"'{name}' beside '{isa.OUTER}'")
                alike = chunks.setdefault(dense[name].parameter, count)
                need(count == alike, f"'{name}': 'chunks' is {count}, expected {alike}")
                self.chunks = max(self.chunks, count)
                for gradient in self._made_by(list(dense).index(name)):
                    self._gradient(gradient, fields)
            elif name == isa.OUTER:
                for gradient in self._made_by(fields["gradient"]):
                    self._gradient(gradient, fields)
            elif name in products:
                self.first[products[name].sums] = fields["tokens"]
            elif name in tables:
                for product in tables[name].products:
                    summed = self.first.get(product.sums, fields["tokens"])
                    message = f"'{name}': {fields['tokens']} tokens, {summed} in '{product.sums}'"
                    need(summed == fields["tokens"], message)
                self._shares(name, fields)
                self.tokens[tables[name].parameter] = fields["tokens"]
                need(fields["tokens"] >= 0, f"'{name}': {fields['tokens']} tokens")
                need(
                    fields["first_norm"] == norms, f"'{name}': norms from {fields['first_norm']}, not {norms}"
                )
                norms += fields["tokens"] * isa.table_norms(tables[name])
            elif name == isa.REDUCE:
                there = buffers.get(fields["base"], [])
                need(there, f"a sum over address {fields['base']}, where no result is")
                right = [(self.text.rows[r.space], self.text.buffers[r.buffer].width) for r in there]
                found = (fields["rows"], fields["stride"])
                message = f"the sum of '{there[-1].name}': (rows, stride) {found}, expected {right[-1]}"
                need(found in right, message)
                sums.append(fields["result"])
            elif name == isa.NORM:
                need(not outer, f"'{name}' beside '{isa.OUTER}'")
                begin, floats, owner = next(norm_groups, (0, 0, ""))
                expected = {"first": begin, "count": floats, "first_norm": norms_before}
                self._fields(name, fields, expected | {"chunks": chunks.get(owner, 1)})
                norms_before += -(-floats // isa.NORM_CHUNK)
            elif name == isa.DEVICE_BARRIER:
                most_norms, norms = max(norms, most_norms), meeting.norms(self.tokens)
            elif name == isa.FOLLOW:
                first, count = isa.trained_floats(self.text.plan), isa.followed_floats(self.text.plan)
                expected = {"first": first, "count": count, "norms": norms}
                self._fields(name, fields, expected)
                moved = {n for name, n in chunks.items() if self.text.program.parameter(name).running}
                need(moved <= {fields["chunks"]}, f"'{name}': 'chunks' is {fields['chunks']}, not {moved}")
            elif name in OPTIMIZERS:
                updated.append({field: word for field, word in fields.items() if field != "norms"})
                self._fields(name, fields, {"norms": norms})
                self._has_states(name)
            elif name.split(" ")[0] in OPTIMIZERS:
                optimizer, _, table = name.partition(" ")
                rate = float_bits(self.text.program.parameter(table).rate)
                self._fields(
                    name, fields, {"tokens": self.tokens.get(table, 0), "norms": norms, "rate": rate}
                )
                self._has_states(optimizer)
        for name, gradient in dense.items() if trains(self.text.mode) else ():
            right_rows, summed = self._rows_of(gradient), self.summed[name]
            need(summed == right_rows, f"'{name}': {summed} rows, expected {right_rows}")
        right_sums = [word for word, _ in self.text.schedule.results.values()]
        need(sums == right_sums, f"sums go to the words {sums} of the results, expected {right_sums}")
        need(updated in ([], known.updates), f"updates are {updated}, expected {known.updates}")
        meets = isa.DEVICE_BARRIER in names or not updated or self.text.schedule.devices == 1
        need(meets, "devices that train together do not meet in front of the update")
        if trains(self.text.mode):
            missing = ({*dense, *tables} - set(names)) or {""}
            need(missing == {""}, f"'{min(missing)}' is missing")
        self.norms = max(norms, most_norms)

    def _outer_norms(self, instructions: Ints) -> int:
        """Norms that `outer` instructions leave: the last one of a trained parameter its own, in a row."""
        found = dict[tuple[str, int], tuple[int, int]]()
        for words in instructions.tolist():
            fields = dict(zip(isa.OUTER_FIELDS, words[1:], strict=True))
            gradient, *_ = self._made_by(fields["gradient"])
            key, first = (gradient.parameter, fields["index"]), fields["first_norm"]
            before = found.pop(key, (isa.NO_NORM, 0))[0]
            need(before == isa.NO_NORM, f"'{gradient.name}': its norm is not the last one's")
            found[key] = first, cutting.outer_tiles(gradient)
        trained = {key: own for key, own in found.items() if self.text.program.parameter(key[0]).trained}
        right = all(own[0] == isa.NO_NORM for key, own in found.items() if key not in trained)
        need(right, f"'{isa.OUTER}': a norm of what is no gradient")
        end = 0
        for first, count in sorted(trained.values()):
            need(first == end, f"'{isa.OUTER}': norms from {first}, not {end}")
            end += count
        return end

    def _made_by(self, number: int) -> list[DenseGradient]:
        """The gradient with a number, and what is made along with it."""
        gradients, beside = self.text.plan.dense_gradients, self.text.known.along
        need(0 <= number < len(gradients), f"'{isa.OUTER}': no gradient {number}")
        found = [gradients[number], *(beside[name] for name in (gradients[number].name,) if name in beside)]
        need(found[0] not in beside.values(), f"'{found[0].name}' is made beside another")
        return found

    def _shares(self, name: str, fields: dict[str, int]) -> None:
        """Workers that take tiles of products, and a size that the kernel has."""
        before, left_out = fields.get("before", 0), fields.get("left_out", 0)
        some = 0 <= before <= before + left_out <= self.text.grid and 0 <= left_out < self.text.grid
        need(some, f"'{name}': {left_out} workers behind {before} of {self.text.grid} are left out")
        sizes = isa.token_groups(self.text.plan)
        groups = fields.get("groups", sizes[0])
        need(groups in sizes, f"'{name}': no tiles of {groups} groups")

    def _rows_of(self, gradient: DenseGradient) -> int:
        """Rows that add to a gradient: those of its space, or sums of touched rows."""
        return self.first.get(gradient.delta.buffer, self.text.rows[gradient.space])

    def _gradient(self, gradient: DenseGradient, fields: dict[str, int]) -> None:
        """Rows that exist, and of a stack those whose index selects what they are added to."""
        name, rows = gradient.name, self._rows_of(gradient)
        first, count, index = fields["row"], fields["rows"], fields["index"]
        need(0 <= first <= first + count <= rows, f"'{name}': rows {first} to {first + count} of {rows}")
        many = self.text.program.parameter(gradient.parameter).count
        need(0 <= index < many, f"'{name}': number {index} of {many} parameters")
        at = self.text.list_at(f"{gradient.space}:self.{gradient.field}") if gradient.field else 0
        if at:  # a launch in which nothing else selects, as backward alone may be, has no list of it
            chosen = self.text.part(at + first, count, gradient.field)
            need((chosen == index).all(), f"'{name}': a row of another index than {index}")
        if name in self.early:
            right = first == self.early[name] and fields["accumulate"] == 1
            need(right, f"'{name}': rows from {first} on are not added to the {self.early[name]} before them")
        self.summed[name] += count

    def _fields(self, name: str, fields: dict[str, int], expected: dict[str, int]) -> None:
        for field, right in expected.items():
            need(fields[field] == right, f"'{name}': '{field}' is {fields[field]}, expected {right}")

    def _has_states(self, optimizer: str) -> None:
        for state, _ in zip(isa.STATES, OPTIMIZERS[optimizer].states, strict=False):
            need(state in self.text.bases, f"'{optimizer}': the pool has no '{state}'")

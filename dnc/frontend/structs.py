"""Checks struct declarations.

In: their syntax. Out: `dnc.ir.structure.Struct`s and the name of the root struct. Guaranteed: a
field has one kind and type in all arms of a struct, every struct can be finite, and the root is the
one struct that no other struct refers to.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnc.frontend import syntax
from dnc.frontend.dimensions import Dimensions, text
from dnc.frontend.report import Report
from dnc.ir.structure import (
    ARM,
    CHILD,
    CLASS,
    LINKS,
    LIST,
    OPTIONAL,
    OUTSIDE,
    ROOT,
    SELECTOR,
    TOKEN,
    VECTOR,
    Arm,
    Dimension,
    Field,
    Struct,
)

PULLED = "pulled"
INDEXED_KINDS = (TOKEN, CLASS, SELECTOR, VECTOR, PULLED)
MAY_MISS = (TOKEN, CLASS)
MAY_NOT_MISS = (
    "only a child, a token or a class may be missing: put what may be missing into a struct of its own, "
    "and write Struct? for it"
)

_WORD = "a word is token<dimension>"
_WHOLE = "an index is token<dimension>, a label class<dimension>, what selects from a stack index<dimension>"
_NUMBER, _LIST = "a number is float", "a list of children is written [Struct]"
# What other languages call the kinds of fields.
KINDS_ELSEWHERE = {
    **dict.fromkeys(("string", "str", "word", "text", "char"), _WORD),
    **dict.fromkeys(("int", "integer", "label", "bool", "enum"), _WHOLE),
    **dict.fromkeys(("real", "double", "number", "scalar", "f32", "float32"), _NUMBER),
    **dict.fromkeys(("list", "array", "seq", "sequence"), _LIST),
    **dict.fromkeys(("tensor", "matrix", "floats"), "numbers are vector<dimension>"),
    "optional": "a child that may be missing is written Struct?",
}


def check_structs(
    declared: Sequence[syntax.StructDeclaration], dimensions: Dimensions, report: Report
) -> tuple[dict[str, Struct], str | None, frozenset[tuple[str, str]]]:
    """The structs by name, the root's name (None where in doubt) and (struct, field) of wrong fields."""
    names = [struct.name.text for struct in declared]
    checker = _Structs(names, dimensions, report)
    checker.arms = {arm.name.text: struct.name.text for struct in declared for arm in struct.arms}
    structs = {struct.name.text: checker.struct(struct) for struct in declared}
    if not structs:
        report.error("the program has no struct, expected: struct Name = Arm(field: kind, ...)", None)
        return structs, None, frozenset(checker.broken)
    if not checker.complete:
        return structs, None, frozenset(checker.broken)
    _check_finite(structs, report)
    return structs, _root(structs, report), frozenset()


class _Structs:
    """Turns syntax into structs; `complete` is False after a mistake."""

    def __init__(self, names: list[str], dimensions: Dimensions, report: Report) -> None:
        self.names, self.dimensions, self.report = names, dimensions, report
        self.complete = True
        self.arms: dict[str, str] = {}  # of what struct an arm is
        self.broken: set[tuple[str, str]] = set()

    def _error(self, message: str, at: syntax.Identifier, *notes: str) -> None:
        self.complete = False
        self.report.error(message, at.span, *notes)

    def struct(self, declared: syntax.StructDeclaration) -> Struct:
        if declared.name.text == ROOT:
            self._error(f"'{ROOT}' is the root of a sample and cannot be a struct", declared.name)
        arms: dict[str, Arm] = {}
        seen: dict[str, Field] = {}
        for arm in declared.arms:
            if arm.name.text in arms:
                self._error(f"struct '{declared.name}' has two arms called '{arm.name}'", arm.name)
                continue
            fields: dict[str, Field] = {}
            for field in arm.fields:
                found = self._field(field)
                if found is None:
                    self.broken.add((declared.name.text, field.name.text))
                if field.name.text in fields:
                    self._error(f"arm '{arm.name}' has two fields called '{field.name}'", field.name)
                elif found is not None:
                    fields[found.name] = found
                    self._check_same(seen.setdefault(found.name, found), found, field)
            arms[arm.name.text] = Arm(arm.name.text, tuple(fields.values()))
        if len(arms) > 127:
            self._error(f"struct '{declared.name}' has {len(arms)} arms, expected at most 127", declared.name)
        return Struct(declared.name.text, tuple(arms.values()), declared.name.span)

    def _check_same(self, first: Field, again: Field, declared: syntax.FieldDeclaration) -> None:
        if first != again:
            line = f", as in line {first.span.line}" if first.span else ""
            self._error(
                f"field '{again.name}' is {field_text(again)} here, expected {field_text(first)}{line}: "
                "a field has one kind in all arms",
                declared.name,
            )

    def _field(self, declared: syntax.FieldDeclaration) -> Field | None:
        name, kind = declared.name.text, declared.kind
        if name in LINKS:
            self._error(f"'{name}' is a link that every vertex has and cannot be a field", declared.name)
            return None
        if name == ARM:
            self._error(
                f"'{name}' is the key of a vertex's arm in data files and cannot be a field", declared.name
            )
            return None
        is_list = declared.form in ("list", "values")
        if is_list and (declared.form == "values" or kind.text in (*INDEXED_KINDS, "float")):
            self._error(
                f"list '{name}' does not hold vertices, expected [Struct]",
                kind,
                "what stands in it is a struct: struct Word = Word(form: token<vocab>), and words: [Word]",
            )
            return None
        if declared.form in ("indexed", "optional_indexed"):
            return self._indexed(declared)
        if declared.form == "plain" and kind.text == "float":
            return Field(name, VECTOR, width=0, span=declared.name.span)
        if declared.form == "optional" and kind.text == "float":
            self._error(f"found '{kind}?'; {MAY_NOT_MISS}", kind)
            return None
        if kind.text in INDEXED_KINDS:
            self._error(f"'{kind}' needs a dimension, expected {kind}<dimension>", kind)
            return None
        if kind.text not in self.names and kind.text in self.arms:
            struct = self.arms[kind.text]
            self._error(f"'{kind}' is an arm of '{struct}', expected a struct: write {struct}", kind)
            return None
        if kind.text not in self.names and kind.text.lower() in KINDS_ELSEWHERE:
            meant = KINDS_ELSEWHERE[kind.text.lower()]
            self._error(f"unknown kind of field '{kind}'; {meant}", kind)
            return None
        if kind.text not in self.names:
            self.complete = False
            self.report.unknown("struct", kind.text, [*self.names, *INDEXED_KINDS, "float"], kind.span)
            return None
        form = {"plain": CHILD, "optional": OPTIONAL, "list": LIST}[declared.form]
        return Field(name, form, target=kind.text, span=declared.name.span)

    def _indexed(self, declared: syntax.FieldDeclaration) -> Field | None:
        name, kind = declared.name.text, declared.kind
        assert declared.dimension is not None
        if kind.text not in INDEXED_KINDS:
            if kind.text.lower() in KINDS_ELSEWHERE:
                self._error(f"unknown kind of field '{kind}'; {KINDS_ELSEWHERE[kind.text.lower()]}", kind)
                return None
            self.complete = False
            self.report.unknown("kind of field", kind.text, INDEXED_KINDS, kind.span)
            return None
        may_miss = declared.form == "optional_indexed"
        if may_miss and kind.text not in MAY_MISS:
            self._error(f"found '{kind}<{text(declared.dimension)}>?'; {MAY_NOT_MISS}", kind)
            return None
        if kind.text in (VECTOR, PULLED):
            width = self.dimensions.known(declared.dimension, f"field '{name}'")
            self.complete = self.complete and width is not None
            form = VECTOR if kind.text == VECTOR else OUTSIDE
            return None if width is None else Field(name, form, width=width, span=declared.name.span)
        if kind.text == SELECTOR:
            size = self.dimensions.known(declared.dimension, f"field '{name}'")
            self.complete = self.complete and size is not None
            bound = Dimension(text(declared.dimension), size)
            return None if size is None else Field(name, SELECTOR, bound, span=declared.name.span)
        dimension = self.dimensions.open_or_known(declared.dimension, f"field '{name}'")
        self.complete = self.complete and dimension is not None
        if dimension is None:
            return None
        return Field(name, kind.text, dimension, may_miss=may_miss, span=declared.name.span)


def field_text(field: Field) -> str:
    """A field's kind as it is written."""
    if field.kind == OUTSIDE:
        return f"{PULLED}<{field.width}>"
    if field.kind == VECTOR:
        return f"vector<{field.width}>" if field.width else "float"
    if field.dimension is not None:
        return f"{field.kind}<{field.dimension.name}>{'?' * field.may_miss}"
    return {CHILD: "{}", OPTIONAL: "{}?", LIST: "[{}]"}[field.kind].format(field.target)


def _check_finite(structs: dict[str, Struct], report: Report) -> None:
    """Every struct needs an arm whose children can all be finite."""
    finite: set[str] = set()
    while True:
        found = {
            name
            for name, struct in structs.items()
            if any(
                all(field.target in finite for field in arm.fields if field.kind == CHILD)
                for arm in struct.arms
            )
        }
        if found == finite:
            break
        finite = found
    for name, struct in structs.items():
        if name not in finite:
            report.error(
                f"struct '{name}' can never end: every arm needs a child",
                struct.span,
                "add an arm without children, or make a child optional (Struct?) or a list ([Struct])",
            )


def _root(structs: dict[str, Struct], report: Report) -> str | None:
    """The struct that no other struct refers to."""
    referred = {
        field.target
        for name, struct in structs.items()
        for arm in struct.arms
        for field in arm.fields
        if field.target != name
    }
    roots = [name for name in structs if name not in referred]
    if len(roots) == 1:
        return roots[0]
    last = structs[roots[-1]] if roots else list(structs.values())[-1]
    if roots:
        names = " and ".join(f"'{name}'" for name in roots)
        report.error(
            f"the root of a sample is ambiguous: no other struct refers to {names}, expected one such struct",
            last.span,
        )
    else:
        report.error(
            "no struct is the root: each one is referred to by another",
            last.span,
            f"declare one that no other refers to: struct Sample = Sample(top: {next(iter(structs))})",
        )
    return None

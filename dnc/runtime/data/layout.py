"""What a program says about its data: which keys an object may have, and which arm they mean.

In: structs, and what a program reads of them. Out: a `Layout`, asked by both readers. Guaranteed:
an object's arm is the one that its keys fit (the key "arm" decides where several do), or a `Problem`
says why none does.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from dnc.ir.structure import CLASS, OPTIONAL, OUTSIDE, Arm, Field, Struct
from dnc.runtime.data.problems import Problem, names, shortened, shown, suggestion

ID = "id"
"""The key of what a sample is called, in data and in predictions."""


@attrs.frozen(eq=False)
class Layout:
    """The structs of a program as data.

    ordered: structs whose neighbours (prev, next) the program reads. nonempty: list fields, as
    (struct, field), that must not be empty, because the program starts at their first or last;
    nonempty_inputs: those at whose first or last outputs start.
    targets: vectors, as (struct, field), that only losses and metrics read. root_labels: classes of the
    root's struct that are read at the sample's root alone, and may be missing elsewhere. inputs: classes, as
    (struct, field), that outputs are worked out from, so that they have to be there to predict, too;
    root_inputs: those of the root's struct that outputs read at the root alone. pulled: by struct, the fields
    that are handed in with every batch, and are not in the data.
    """

    structs: dict[str, Struct]
    root: str
    root_fields: frozenset[str]
    labels_required: bool
    ordered: frozenset[str]
    nonempty: frozenset[tuple[str, str]]
    nonempty_inputs: frozenset[tuple[str, str]]
    targets: frozenset[tuple[str, str]]
    root_labels: frozenset[str]
    inputs: frozenset[tuple[str, str]]
    root_inputs: frozenset[str]
    pulled: dict[str, frozenset[str]]

    @property
    def has_ids(self) -> bool:
        """Whether samples may have an id, as no field of the root is called so, and no struct."""
        return ID not in self.root_fields and ID not in self.structs

    @property
    def at_root(self) -> frozenset[str]:
        """The classes that the root has to have, though they may be missing elsewhere."""
        needed = self.root_labels if self.labels_required else self.root_inputs
        fields = self.structs[self.root].fields
        return frozenset(name for name in needed if not fields[name].may_miss)

    @property
    def never_empty(self) -> frozenset[tuple[str, str]]:
        """The lists that must not be empty, for what the data are read for."""
        return self.nonempty if self.labels_required else self.nonempty_inputs

    def may_be_unknown(self, struct: str, field: Field) -> bool:
        """Whether a class may be a label that the model does not know: one that is there to be predicted."""
        reads = (struct, field.name) in self.inputs or (
            struct == self.root and field.name in self.root_inputs
        )
        return not self.labels_required and not reads

    def may_miss(self, struct: str, field: Field) -> bool:
        """Whether a vertex may lack `field`: what is declared so, and labels that nothing reads there; for
        prediction, what is predicted, and not what it follows from.

        Of labels that are read at the root alone the root itself is not asked here.
        """
        if field.kind == OPTIONAL or field.may_miss:
            return True
        if self.labels_required:
            return field.kind == CLASS and struct == self.root and field.name in self.root_labels
        if field.kind == CLASS:
            return (struct, field.name) not in self.inputs
        return (struct, field.name) in self.targets

    def required(self, struct: Struct, arm: Arm) -> list[str]:
        """The fields that an instance of `arm` must have."""
        return [field.name for field in arm.fields if not self.may_miss(struct.name, field)]

    def choose(
        self, struct: Struct, keys: frozenset[str], arm: str | None, nulls: Collection[str] = ()
    ) -> int:
        """The index of the arm of an object of `struct` with these keys ("arm" not among them).

        nulls: keys that it has as well, but without a value.
        """
        if arm is not None or len(struct.arms) == 1:
            index = self.arm_index(struct, arm) if arm is not None else 0
            self._fits(struct, struct.arms[index], keys, nulls)
            return index
        fits = [
            index
            for index, each in enumerate(struct.arms)
            if keys <= field_names(each) and keys.issuperset(self.required(struct, each))
        ]
        exact = [index for index in fits if keys == field_names(struct.arms[index])]
        if len(exact) == 1 or len(fits) == 1:
            return exact[0] if len(exact) == 1 else fits[0]
        if fits:
            choices = " or ".join(f'"{struct.arms[index].name}"' for index in fits)
            raise Problem(f'several arms of {struct.name} have these fields; add "arm": {choices}')
        raise self._no_arm(struct, keys, nulls)

    def arm_index(self, struct: Struct, name: object) -> int:
        """The index of the arm called `name`."""
        known = [arm.name for arm in struct.arms]
        if not isinstance(name, str) or name not in known:
            hint = suggestion(name, known) if isinstance(name, str) else ""
            found = f"'{shortened(name)}'" if isinstance(name, str) else shown(name)
            raise Problem(f"{struct.name} has no arm {found}, only {names(known)}{hint}")
        return known.index(name)

    def unknown_field(self, struct: Struct, owner: str, key: str, known: Collection[str]) -> str:
        """The message for a key that is no field of an arm or a struct, called `owner`."""
        if key in self.pulled[struct.name]:
            return f"'{key}' of {owner} is pulled: it is handed in with every batch, and not in the data"
        hint = suggestion(key, known)
        if not hint:
            hint = f"; its fields are {names(sorted(known))}" if known else "; it has no fields"
        return f"{owner} has no field '{shortened(key)}'{hint}"

    def _fits(self, struct: Struct, arm: Arm, keys: frozenset[str], nulls: Collection[str]) -> None:
        for key in sorted(keys - field_names(arm)):
            raise Problem(self.unknown_field(struct, arm.name, key, [field.name for field in arm.fields]))
        for name in self.required(struct, arm):
            if name not in keys:
                raise missing_field(arm, name, nulls)

    def _expected(self, struct: Struct, arm: Arm) -> str:
        """What an instance of an arm has."""
        if required := self.required(struct, arm):
            return f"{arm.name} expects {names(required)}"
        return f"{arm.name} may have {names(field.name for field in arm.fields) or 'no fields'}"

    def _no_arm(self, struct: Struct, keys: frozenset[str], nulls: Collection[str]) -> Problem:
        known = struct.fields
        if pulled := keys & self.pulled[struct.name]:
            return Problem(self.unknown_field(struct, struct.name, min(pulled), ()))
        lacks = [
            (arm, [name for name in self.required(struct, arm) if name not in keys])
            for arm in struct.arms
            if keys and keys <= field_names(arm)
        ]
        fewest = min((len(missing) for _, missing in lacks), default=0)
        near = [(arm, missing) for arm, missing in lacks if len(missing) == fewest]
        if len(near) == 1:
            arm, missing = near[0]
            return missing_field(arm, missing[0], nulls)
        unknown = sorted(keys - set(known))
        whole = [
            arm
            for arm in struct.arms
            if field_names(arm) >= keys - set(unknown) >= set(self.required(struct, arm))
        ]
        if unknown and len(whole) == 1 and len(unknown) < len(keys):
            found = self.unknown_field(struct, whole[0].name, unknown[0], field_names(whole[0]))
            return Problem(found)
        if len(unknown) == 1 and len(keys) > 1 and suggestion(unknown[0], set(known) - keys):
            return Problem(self.unknown_field(struct, struct.name, unknown[0], set(known) - keys))
        expected = "; ".join(self._expected(struct, arm) for arm in struct.arms)
        found = f"the fields {names(sorted(keys))}" if keys else "no fields"
        found += f" ({names(sorted(nulls))} null)" if nulls else ""
        foreign = (
            "; is this the data of another program?" if unknown and 2 * len(unknown) >= len(keys) else ""
        )
        return Problem(f"no arm of {struct.name} matches: found {found}; {expected}{foreign}")


def missing_field(arm: Arm, name: str, nulls: Collection[str] = ()) -> Problem:
    """What says that a field is missing, or null."""
    field = next(field for field in arm.fields if field.name == name)
    found = "null" if name in nulls else "missing"
    return Problem(f"{arm.name}: field '{name}' is {found}", note=as_optional(field))


def as_optional(field: Field) -> str:
    """How a program says that a class may be missing; "" for other fields."""
    if field.kind != CLASS or field.dimension is None:
        return ""
    return f"where some have none, the program says so: {field.name}: class<{field.dimension.name}>?"


def field_names(arm: Arm) -> frozenset[str]:
    """The names of all fields of an arm."""
    return frozenset(field.name for field in arm.fields)


def in_data(struct: Struct) -> Struct:
    """A struct without what is handed in for every batch."""
    arms = (
        attrs.evolve(arm, fields=tuple(field for field in arm.fields if field.kind != OUTSIDE))
        for arm in struct.arms
    )
    return attrs.evolve(struct, arms=tuple(arms))


def handed_in(struct: Struct) -> frozenset[str]:
    """The names of pulled fields: not of those for gradients of pushed values, which no program can write."""
    outside = (name for name, field in struct.fields.items() if field.kind == OUTSIDE)
    return frozenset(name for name in outside if name.isidentifier())

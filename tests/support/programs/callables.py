"""Random cells, functions, losses, metrics and outputs.

In: a draft with structs. Out: their texts, in the draft. Guaranteed: recursive functions go one way,
and what they hand on is bounded, so that long structures neither explode nor vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.programs.draft import Callable_, Draft, Field, Shape, State
from tests.support.programs.scope import CHILDREN, Group, Scope, common_fields, links
from tests.support.programs.values import Expressions, call_text, class_text, state_text

MEASURED = (
    ("mean", "{}"),
    ("mean", "{}"),
    ("perplexity", "abs(tanh({}))"),
    ("pearson", "tanh({}), tanh({})"),
    ("rmse", "tanh({}), tanh({})"),
)
BOUNDED = ("tanh({})", "sigmoid({})", "(0.5 * tanh({}) + 0.25)", "({} / 4)")


def add_cell(draft: Draft, result: Shape | State, states: bool = True) -> Callable_:
    """A new cell with that result; without `states`, no argument is a state."""
    scope = Scope(draft, cells=len(draft.cells) > 0 and states)
    arguments: list[tuple[str, Shape | State]] = []
    for _ in range(draft.count(1, 3)):
        if states and draft.chance(25):
            arguments.append((draft.name("s"), draft.state()))
        elif draft.chance(15):
            arguments.append((draft.name("m"), (draft.width(), draft.width())))
        else:
            arguments.append((draft.name("a"), draft.shape()))
    for name, type in arguments:
        scope.add(name, type)
    if states and scope.cells:  # a cell may call those before it
        scope.cells = draft.chance(30)
    text = body(draft, scope, result, False)
    name = draft.name("cell")
    listed = ", ".join(f"{argument}: {draft.type_text(type)}" for argument, type in arguments)
    shown = f" -> {draft.type_text(result)}" if isinstance(result, State) or draft.chance(50) else ""
    draft.lines.append(f"cell {name}({listed}){shown}{text}")
    draft.cells.append(Callable_(name, result, tuple(arguments)))
    return draft.cells[-1]


def body(draft: Draft, scope: Scope, result: Shape | State, bounded: bool) -> str:
    """` = expression` or a block that returns `result`."""
    if not isinstance(result, State) and not draft.chance(40):
        return f" = {_last(draft, scope, result, bounded)}"
    if isinstance(result, State) and scope.cells and not scope.reads and draft.chance(60):
        return f" = {_state_call(draft, scope, result)}"
    lines = []
    for _ in range(draft.pick((0, 1, 2))):
        if draft.chance(50):
            count, width = draft.pick((2, 3)), draft.width()
            names = [draft.name("v") for _ in range(count)]
            whole = Expressions(draft, scope).value((count * width,))
            shown = [*names[:-1], "_"] if draft.chance(20) else names
            lines.append(f"{', '.join(shown)} = split({whole}, {count})")
            names = [name for name in names if name in shown]
            for name in names:
                scope.add(name, (width,))
        else:
            shape, name = draft.shape(), draft.name("v")
            lines.append(f"{name} = {Expressions(draft, scope).value(shape)}")
            scope.add(name, shape)
    if isinstance(result, State):
        for component, shape in result.components:
            lines.append(f"{component} = {_last(draft, scope, shape, bounded)}")
            scope.add(component, shape)
    else:
        lines.append(_last(draft, scope, result, bounded))
    return ":\n" + "\n".join(f"    {line}" for line in lines)


def _last(draft: Draft, scope: Scope, shape: Shape, bounded: bool) -> str:
    value = Expressions(draft, scope).value(shape)
    for function in scope.reads:
        known = ((one, text) for one, texts in scope.values.items() for text in texts)
        calls = [(one, text) for one, text in known if f"{function.name}(" in text]
        if calls:
            value = f"({value} + {_as(draft, shape, *draft.pick(calls))})"
    return draft.pick(BOUNDED).format(value) if bounded else value


def _as(draft: Draft, shape: Shape, given: Shape, text: str) -> str:
    """A value of one shape as one of another, by a parameter."""
    if len(shape) == len(given) == 1:
        return f"{draft.parameter((*shape, *given))} @ {text}"
    if shape == given:
        return text
    return f"{draft.parameter(shape)} * mean({text})" if shape else f"mean({text})"


def _state_call(draft: Draft, scope: Scope, state: State) -> str:
    """A call of a cell that returns the state."""
    e = Expressions(draft, scope)
    makers = [cell for cell in draft.cells if cell.result == state]
    if not makers or draft.chance(40):
        makers = [_bounded_cell(draft, state)]
    return call_text(e, draft.pick(makers), draft.depth - 1)


def _bounded_cell(draft: Draft, state: State) -> Callable_:
    """A cell from a vector and, mostly, the state itself to the state, its components bounded."""
    arguments: list[tuple[str, Shape | State]] = [(draft.name("a"), (draft.width(),))]
    arguments += [(draft.name("s"), state) for _ in range(draft.pick((1, 2, 0)))]
    scope = Scope(draft, cells=False)
    for name, type in arguments:
        scope.add(name, type)
    text = body(draft, scope, state, True)
    name = draft.name("cell")
    listed = ", ".join(f"{argument}: {draft.type_text(type)}" for argument, type in arguments)
    draft.lines.append(f"cell {name}({listed}) -> {state.name}{text}")
    draft.cells.append(Callable_(name, state, tuple(arguments)))
    return draft.cells[-1]


# ---- functions -----------------------------------------------------------------------------------


def add_functions(draft: Draft, groups: int) -> None:
    """Up to `groups` groups of functions; later ones may call earlier ones anywhere."""
    for name in draft.structs:
        for arm in draft.structs[name].arms.values():
            if any(field.kind == "token" for field in arm) and not draft.tables:
                draft.table((draft.width(),))
                if draft.chance(15):
                    draft.table((draft.narrow(), draft.narrow()))
    ways = {name: found for name in draft.structs if (found := _ways(draft, name))}
    if len(ways) > 1 and groups > 1 and draft.chance(45):
        _add_strata(draft, ways, draft.count(2, max(groups, 3)))
        return
    for _ in range(draft.count(1, groups)):
        struct = draft.pick(list(draft.structs))
        _add_group(draft, struct, draft.pick((CHILDREN, *links(draft, struct), None)))


def _ways(draft: Draft, struct: str) -> list[str]:
    """The ways that a recursion over a struct alone can go."""
    holds_own = any(field.target == struct for arm in draft.structs[struct].arms.values() for field in arm)
    return [*links(draft, struct), *([CHILDREN] if holds_own else [])]


def _add_strata(draft: Draft, ways: dict[str, list[str]], count: int) -> None:
    """Recursions over several structs, each of which reads some before it, and a loss that reads the last."""
    names = list(ways)
    first = draft.count(0, len(names) - 1)
    for number in range(count):
        # Mostly another struct than the one before.
        struct = draft.pick(names) if draft.chance(30) else names[(first + number) % len(names)]
        before = draft.functions[-1:] if draft.chance(60) else draft.functions[-2:]
        _add_group(draft, struct, draft.pick(ways[struct]), tuple(before))
    last = draft.functions[-1]
    text = f"{last.name}(t)" + (f".{last.result.components[0][0]}" if isinstance(last.result, State) else "")
    draft.lines.append(f"loss sum(t in all({last.struct})) sum({text} * {text})")


def _add_group(
    draft: Draft, struct: str, way: str | None, reads: tuple[Callable_, ...] | None = None
) -> None:
    """A function, or two that call each other, with one way that their recursion goes. reads: functions that
    every one calls where it can; then it calls those of its group as well."""
    structs = [struct]
    if way is not None and draft.chance(20):
        structs.append(draft.pick(list(draft.structs)) if way == CHILDREN else struct)
    group = []
    for each in structs:
        result: Shape | State = draft.state() if draft.chance(55) else draft.shape()
        group.append(Callable_(draft.name("f"), result, struct=each))
    for number, function in enumerate(group):
        later = tuple(group[number + 1 :]) if way is not None else ()
        called = () if reads is None else (*reads, *group)
        here = bool(later) and draft.chance(50)  # calls those behind it at the vertex itself, and no others
        _write_function(draft, function, Group(tuple(group), None if here else way, later), called)
    draft.functions += group


def _write_function(draft: Draft, function: Callable_, group: Group, reads: tuple[Callable_, ...]) -> None:
    arms, recursive = draft.structs[function.struct].arms, bool(group.way or group.later)
    shown = f" -> {draft.type_text(function.result)}"
    if not recursive and not isinstance(function.result, State) and draft.chance(50):
        shown = ""
    head = f"fn {function.name}(t: {function.struct}){shown}"

    def scope_of(names: Sequence[str], bound: Sequence[Field] = ()) -> Scope:
        scope = Scope(draft, follows=True, reads=reads)
        scope.add_vertex("t", function.struct, names, bound, group)
        return scope

    if len(arms) == 1 or (reads and isinstance(function.result, State)) or draft.chance(25):
        text = body(draft, scope_of(tuple(arms)), function.result, recursive)
        draft.lines.append(head + text)
        return
    lines = []
    for name in arms:
        fields = common_fields(draft, function.struct, [name])
        bound = [field for field in fields if field.kind not in ("list",) and draft.chance(50)]
        scope = scope_of([name], [field for field in bound if field.target is None])
        if isinstance(function.result, State):
            if draft.chance(70):
                value = _state_call(draft, scope, function.result)
            else:
                value = state_text(Expressions(draft, scope), function.result, draft.depth)
        else:
            value = _last(draft, scope, function.result, recursive)
        pattern = ", ".join([*(field.name for field in bound), "..."])
        if draft.chance(30):
            pattern = ", ".join(field.name if field in bound else "_" for field in fields)
        lines.append(f"    {name}({pattern}) -> {value}")
    draft.lines.append(f"{head} = match t:\n" + "\n".join(lines))


# ---- terms ---------------------------------------------------------------------------------------


def add_terms(draft: Draft) -> None:
    """One or two losses, up to two metrics and two outputs; something may be pushed."""
    for _ in range(draft.pick((1, 1, 2))):
        domain, scope = _domain(draft)
        weight = draft.pick(("", "", "0.5 * ", "2 * "))
        draft.lines.append(f"loss {weight}sum(t in {domain}) {_loss(draft, scope)}")
    for _ in range(draft.pick((0, 1, 2))):
        domain, scope = _domain(draft)
        measure, value = draft.pick(MEASURED)
        shown = value.format(*(_loss(draft, scope) for _ in range(value.count("{}"))))
        draft.lines.append(f"metric {draft.name('metric')} = {measure}(t in {domain}) {shown}")
    for _ in range(draft.pick((0, 1, 2))):
        _add_output(draft, "output", lambda scope: _output(draft, scope))
    if draft.chance(15):
        width = (draft.width(),)
        _add_output(draft, "push", lambda scope: Expressions(draft, scope).value(width, 2))


def _add_output(draft: Draft, word: str, write: Callable[[Scope], str]) -> None:
    """An output of the root or of every vertex of a domain."""
    name = draft.name("out")
    if draft.chance(50):
        scope = Scope(draft)
        root = next(iter(draft.structs))
        scope.add_vertex("root", root, tuple(draft.structs[root].arms))
        draft.lines.append(f"{word} {name} = {write(scope)}")
    else:
        domain, scope = _domain(draft)
        draft.lines.append(f"{word} {name} = [{write(scope)} for t in {domain}]")


def _domain(draft: Draft) -> tuple[str, Scope]:
    """A domain and what its vertex `t` sees."""
    struct = draft.pick(list(draft.structs))
    arms = list(draft.structs[struct].arms)
    ways = [f"all({struct})"]
    if struct == next(iter(draft.structs)):
        ways.append("root")
    if len(arms) > 1:
        ways.append("arm")
    way = draft.pick(ways)
    chosen = [draft.pick(arms)] if way == "arm" else arms
    scope = Scope(draft)
    scope.add_vertex("t", struct, chosen)
    return (f"all({struct}.{chosen[0]})" if way == "arm" else way), scope


def _loss(draft: Draft, scope: Scope) -> str:
    """A scalar, mostly one that reads a function."""
    e = Expressions(draft, scope)
    calls = [(shape, text) for shape, texts in scope.values.items() for text in texts if text.startswith("f")]
    if not calls or draft.chance(25):
        return e.value((), 2)
    shape, text = draft.pick(calls)
    sized = [size for size in scope.classes if len(shape) == 1]
    if sized and draft.chance(60):
        size = draft.pick(sized)
        logits = f"{draft.parameter((size, shape[0]))} @ {text}"
        return f"cross_entropy({logits}, {draft.pick(scope.classes[size])})"
    form = draft.pick(("squared_error({0}, {1})", "sum({0} * {0})", "sum({0})"))
    return form.format(text, e.value(shape, 2) if "{1}" in form else "")


def _output(draft: Draft, scope: Scope) -> str:
    e = Expressions(draft, scope)
    if draft.chance(30):
        return class_text(e, int(draft.dimensions["classes"] or 0), 2)
    return e.value(draft.shape(), 2)

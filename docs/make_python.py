"""Writes what docs/python.md says of every name from its signature and docstring.

    python docs/make_python.py          # rewrites the generated blocks
    python docs/make_python.py --check  # exit code 1 if they are stale

In: the public names below; needs PyTorch, for `dnc.torch`. Guaranteed: a name without a docstring is an
error, and so is a public method that is neither shown nor listed as internal.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import attrs
from generated import Stale, rewrite, with_blocks

import dnc
import dnc.torch
from dnc.compiler import PlanOptions, compile_model
from dnc.runtime.results import Evaluation
from dnc.weights import export_weights, import_weights

PAGE = Path(__file__).parent / "python.md"
WIDTH = 100  # of a line of a signature
MODEL = (
    "attach", "read", "configure", "step", "steps", "sync", "train", "evaluate", "predict", "predictions",
    "forward", "backward", "generate", "stream", "parameters", "set_parameters", "load_weights",
    "load_embeddings", "save", "restore", "trace", "device", "launches", "program",
)  # fmt: skip
MODULE = ("forward", "predict", "batches", "encoder", "attach", "vocabularies", "sizes", "draws", "save")
INTERNAL = {
    "Model": ("attached", "batch_of", "check_trains", "encoded", "encoder", "session", "start"),
    "Module": ("extra_repr", "turn"),
}  # fmt: skip
"""What `dnc` itself, and those who extend it, have beside these."""


def text_of(name: str, thing: Any) -> str:
    """A docstring as Markdown."""
    found = inspect.getdoc(thing)
    if not found:
        raise Stale(f"{name} has no docstring")
    return found


def default(value: Any) -> str:
    """A default as it is written; `...` for what has no short form."""
    if attrs.has(type(value)):
        return f"{type(value).__name__}()"
    return "..." if callable(value) else repr(value)


def parameter_of(own: inspect.Parameter) -> str:
    """A parameter as in its function's first lines."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(own.kind, "")
    found = stars + own.name
    if own.annotation is not own.empty:
        found += f": {own.annotation}"
    return found if own.default is own.empty else f"{found} = {default(own.default)}"


def signature(name: str, thing: Callable[..., Any], bound: bool) -> str:
    """How something is called; bound: without the object that it is called on."""
    found = inspect.signature(thing)
    given, parts = list(found.parameters.values())[bound:], list[str]()
    for number, own in enumerate(given):
        by_name = [other.kind == own.KEYWORD_ONLY for other in given[: number + 1]]
        if by_name[-1] and not any(by_name[:-1]):
            parts.append("*")
        parts.append(parameter_of(own))
    back = "" if found.return_annotation in (found.empty, None, "None") else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parts)}){back}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){back}"])


def entry(name: str, thing: Any, bound: bool = False, text: str = "") -> str:
    """A name, how it is called, and what its docstring says."""
    lines = [f"### `{name.rpartition('.')[2] if bound else name}`", ""]
    if callable(thing):
        lines += ["```text", signature(name, thing, bound), "```", ""]
    return "\n".join([*lines, text or text_of(name, thing), "", ""])


def methods(kind: type, names: Iterable[str], prefix: str) -> str:
    """The methods of a class by these names, in order; Stale where it has others."""
    own = {name for name, value in vars(kind).items() if not name.startswith("_") and _is_method(value)}
    known = {*names, *INTERNAL[kind.__name__]}
    if own != known:
        raise Stale(f"{kind.__name__} has {sorted(own - known)}, and not {sorted(known - own)}")
    return "".join(entry(f"{prefix}.{name}", getattr(kind, name), bound=True) for name in names)


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


def render(page: str) -> str:
    """The page with its blocks made again."""
    made = {
        "opening": entry("dnc.load", dnc.load) + entry("dnc.as_json", dnc.as_json),
        "model": methods(dnc.Model, MODEL, "model"),
        "evaluation": entry("Evaluation", Evaluation),
        "compiling": entry("dnc.compiler.compile_model", compile_model)
        + entry("dnc.compiler.PlanOptions", PlanOptions),
        "weights": entry("dnc.weights.import_weights", import_weights)
        + entry("dnc.weights.export_weights", export_weights),
        "module": entry(
            "dnc.torch.Module",
            dnc.torch.Module,
            text=f"{text_of('Module', dnc.torch.Module)}\n\n{text_of('Module', dnc.torch.Module.__init__)}",
        )
        + methods(dnc.torch.Module, MODULE, "net"),
    }
    return with_blocks(PAGE.name, page, made)


if __name__ == "__main__":
    try:
        sys.exit(rewrite(PAGE, render, sys.argv[1:]))
    except Stale as error:
        sys.exit(f"error: {error}")

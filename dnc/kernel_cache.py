"""Kernels of a plan, emitted once and kept in the user's cache.

In: a plan and its digest. Out: files by name. Guaranteed: an entry depends on the plan, the target,
and the versions of the emitters; it is written whole or not at all, and a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from dnc.cache_folder import cache_folder, mark_used, trim
from dnc.ir.machine import machine
from dnc.ir.plan import Plan
from dnc.runtime.json_text import decode_json
from dnc.version import VERSION

_INDEX = "index.json"


def cached_kernels(plan: Plan, plan_digest: str) -> tuple[dict[str, bytes], bool]:
    """The kernel files of a plan, and whether they came from the cache."""
    return _cached(_key(plan, plan_digest), lambda: _emit(plan))


def traced_kernels(plan: Plan, plan_digest: str) -> dict[str, bytes]:
    """The files of the kernel that keeps the times of every instruction; a build does not hold it."""
    return _cached(_key(plan, plan_digest, "traced"), lambda: _emit_traced(plan))[0]


def _cached(key: str, emit: Callable[[], dict[str, bytes]]) -> tuple[dict[str, bytes], bool]:
    folder = cache_folder() / "kernels" / key
    found = _read(folder)
    if found is not None:
        mark_used(folder)
        return found, True
    files = emit()
    _write(folder, files)
    return files, False


def _emit(plan: Plan) -> dict[str, bytes]:
    from dnc.codegen import emit_cpu, emit_cuda

    return emit_cuda(plan) if machine(plan.target).is_gpu else emit_cpu(plan)


def _emit_traced(plan: Plan) -> dict[str, bytes]:
    from dnc.codegen import emit_cpu, emit_cuda

    return emit_cuda(plan, traced=True) if machine(plan.target).is_gpu else emit_cpu(plan, traced=True)


def _key(plan: Plan, plan_digest: str, *variant: str) -> str:
    parts = [plan.target, plan_digest, VERSION, _emitters(), *variant]
    parts += [_version(package) for package in ("apache-tvm", "nvidia-cuda-nvrtc")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _emitters() -> str:
    """A digest of the emitters' own sources, so that work on them never meets an old kernel."""
    total = hashlib.sha256()
    for name in ("dnc.codegen", "dnc.ir", "dnc.tirx_cpu"):
        found = find_spec(name)
        assert found is not None and found.origin, name
        origin = Path(found.origin)
        for file in sorted(origin.parent.rglob("*.py")) if found.submodule_search_locations else [origin]:
            total.update(file.read_bytes())
    return total.hexdigest()


def _read(folder: Path) -> dict[str, bytes] | None:
    try:
        index: dict[str, str] = decode_json((folder / _INDEX).read_bytes(), dict[str, str])
        files = {name: (folder / name).read_bytes() for name in index}
    except (OSError, ValueError):
        return None
    whole = all(hashlib.sha256(files[name]).hexdigest() == found for name, found in index.items())
    return files if whole else None


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Keeps files; a cache that cannot be written is no reason to fail."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for name, content in files.items():
                (made / name).write_bytes(content)
            index = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            (made / _INDEX).write_bytes(msgspec.json.encode(index))
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)  # OSError: another process was faster
            trim(folder.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError:
        return

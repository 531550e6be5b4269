"""Experiment 0: what an exchange costs on this GPU, and a recurrent step with it.

``build OUT`` (no GPU) writes the kernel's CUDA text, its sm_90a cubin and a manifest.
``run OUT RESULT`` (no TVM) checks the kernel against NumPy in float64, measures, provokes
an abort, prints a table and writes the raw numbers as JSON.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ARCH = "sm_90a"
CONSTANTS = (
    *("WORKERS", "THREADS", "WARPS", "HIDDEN", "GATES", "INPUTS", "UNITS", "ROWS", "CHUNKS"),
    *("VERTICES", "SLOTS", "WORDS", "OPCODES", "FIELDS", "THROUGH", "SCOPES", "SHARED_BYTES"),
)
KINDS = {"workers": "int32", "stride": "int32", "limit_us": "uint32"}


def build(out: Path, approximate: bool) -> None:
    """Emit, compile and describe the kernel."""
    import experiment0_kernel as kernel

    from dnc.codegen.nvrtc import compile_cuda
    from dnc.codegen.tirx_cuda import emit_cuda
    from dnc.ir import isa

    source = emit_cuda(kernel.Kernel(approximate).build(), ARCH)
    binary = compile_cuda(source.text, ARCH)
    if not binary.resident:
        raise SystemExit(f"registers went to local memory:\n{binary.log}")
    constants = {name.lower(): getattr(kernel, name) for name in CONSTANTS}
    manifest = constants | {
        "arch": ARCH,
        "symbol": source.symbol,
        "parameters": [(name, KINDS.get(name, "pointer")) for name in source.parameters],
        "abort_fields": isa.ABORT_FIELDS,
        "sigmoid": "ex2.approx, rcp.approx" if approximate else "expf, IEEE division",
        "registers": binary.registers,
        "commit": _commit(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "kernel.cu").write_text(source.text)
    (out / "kernel.cubin").write_bytes(binary.cubin)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1))
    print(f"{binary.registers} registers, no spill, cubin of {len(binary.cubin)} bytes in {out}")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@attrs.frozen
class Model:
    """The matrix of the step: ``U [gates, hidden, 2 hidden]``, bias, first two states."""

    matrix: NDArray[np.float32]
    bias: NDArray[np.float32]
    states: NDArray[np.float32]  # [slots, vertices, hidden]
    _known: dict[int, list[NDArray[np.float64]]] = attrs.field(factory=dict, repr=False)

    def reference(self, steps: int) -> list[NDArray[np.float64]]:
        """States of every slot in time order, in float64."""
        if steps in self._known:
            return self._known[steps]
        u, b = self.matrix.astype(np.float64), self.bias.astype(np.float64)
        h = [self.states[0].astype(np.float64), self.states[1].astype(np.float64)]
        c = [np.zeros_like(h[0]), np.zeros_like(h[0])]
        for _ in range(steps):
            x = np.concatenate([h[-1], h[-2]], axis=1)
            i, o, g, fl, fr = (u @ x.T).transpose(0, 2, 1) + b[:, None]
            sig = [1 / (1 + np.exp(-gate)) for gate in (i, o, fl, fr)]
            cell = sig[0] * np.tanh(g) + sig[2] * c[-1] + sig[3] * c[-2]
            h.append(sig[1] * np.tanh(cell))
            c.append(cell)
        self._known[steps] = h
        return h


class Runner:
    """Loads the kernel, encodes schedules, launches and checks."""

    def __init__(self, out: Path) -> None:
        from dnc.runtime.cuda_driver import LaunchShape, open_device

        self.m: Mapping[str, Any] = json.loads((out / "manifest.json").read_text())
        self.device = open_device()
        self.device.enter()
        parameters = [tuple(entry) for entry in self.m["parameters"]]
        cubin = (out / "kernel.cubin").read_bytes()
        self.kernel = self.device.load(cubin, self.m["symbol"], parameters)
        self.shape = LaunchShape(
            self.m["workers"], self.m["threads"], self.m["shared_bytes"], self.m["workers"]
        )
        self.kernel.prepare(self.shape)
        self.replicas = self.kernel.resident_clusters(self.shape)
        self.total = self.replicas * self.m["workers"]
        slot = self.m["vertices"] * self.m["hidden"]
        self.state_shape = (self.m["slots"], self.m["vertices"], self.m["hidden"])
        self.model = self._model(np.random.default_rng(0))
        self.sizes = {
            "queue": self.total * 4608 * 64,
            "weights": 4 * (self.model.matrix.size + self.model.bias.size),
            "pool": 4 * self.replicas * 3 * slot,
            "dump": 4 * self.total * 3 * slot,
            "counters": 4 * 32 * (self.replicas + 1),
            "abort": 16,
            "progress": 4 * self.total,
        }
        self.buffers = {name: self.device.allocate(size) for name, size in self.sizes.items()}
        self.hosts = {name: self.device.pinned(size) for name, size in self.sizes.items()}
        self._upload_weights()

    def _model(self, rng: np.random.Generator) -> Model:
        gates, hidden, inputs = self.m["gates"], self.m["hidden"], self.m["inputs"]
        matrix = rng.standard_normal((gates, hidden, inputs)) / math.sqrt(inputs)
        bias = 0.1 * rng.standard_normal((gates, hidden))
        states = 0.5 * rng.standard_normal(self.state_shape)
        return Model(*(array.astype(np.float32) for array in (matrix, bias, states)))

    def _upload_weights(self) -> None:
        """Row ``u * 5 + g`` of warp w of worker r is gate g of unit 16 r + 2 w + u."""
        m, view = self.m, self.hosts["weights"].view(np.float32)
        split = (m["gates"], m["workers"], m["warps"], 2)
        rows = self.model.matrix.reshape(*split, m["chunks"], 32, 4)
        packed = rows.transpose(1, 2, 3, 0, 4, 5, 6)  # r w u g chunk lane 4
        view[: packed.size] = packed.ravel()
        view[packed.size :] = self.model.bias.reshape(*split).transpose(1, 2, 3, 0).ravel()
        self.device.stream.upload(self.buffers["weights"], self.hosts["weights"])

    def word(self, opcode: str, **fields: int) -> list[int]:
        words = [0] * self.m["words"]
        words[0] = self.m["opcodes"].index(opcode)
        for name, value in fields.items():
            words[self.m["fields"].index(name)] = value
        return words

    def schedule(self, body: Callable[[int], list[list[int]]], steps: int) -> NDArray[np.int32]:
        """LOAD and a cluster barrier, ``steps`` times the body, END."""
        words = [self.word("LOAD"), self.word("CLUSTER")]
        for step in range(steps):
            words += body(step)
        return np.array([*words, self.word("END")], np.int32)

    def launch(
        self,
        queues: NDArray[np.int32],
        replicas: int,
        limit_us: int = 100_000,
        repeats: int = 1,
    ) -> list[float]:
        """Launch with the same queue for all workers, or one each; microseconds of each."""
        stream, workers = self.device.stream, replicas * self.m["workers"]
        words = np.broadcast_to(queues, (workers, *queues.shape[-2:])).reshape(-1)
        self.hosts["queue"].view(np.int32)[: words.size] = words
        stream.upload(self.buffers["queue"], self.hosts["queue"], words.nbytes)
        pool = self.hosts["pool"].view(np.float32).reshape(self.replicas, -1)
        pool[:] = self.model.states.ravel()
        arguments = self.buffers | {
            "workers": workers,
            "stride": queues.shape[-2] * self.m["words"],
            "limit_us": limit_us,
        }
        taken = []
        for _ in range(repeats):
            for name in ("dump", "counters", "abort", "progress"):
                stream.fill_zero(self.buffers[name])
            stream.upload(self.buffers["pool"], self.hosts["pool"])
            start = stream.record()
            shape = attrs.evolve(self.shape, workers=workers)
            self.device.launch(self.kernel, shape, arguments)
            end = stream.record()
            end.synchronize()
            taken.append(end.microseconds_since(start))
        return taken

    def read(self, name: str, dtype: Any) -> NDArray[Any]:
        self.device.stream.download(self.hosts[name], self.buffers[name])
        self.device.stream.synchronize()
        return self.hosts[name].view(dtype).copy()

    def check_abort(self) -> None:
        from dnc.runtime.cuda_driver import raise_on_abort

        raise_on_abort(self.abort_record(), self.m["scopes"])

    def abort_record(self) -> dict[str, int]:
        values = self.read("abort", np.uint32).tolist()
        return dict(zip(self.m["abort_fields"], values, strict=True))

    def slope(
        self, body: Callable[[int], list[list[int]]], replicas: int, repeats: int = 15
    ) -> dict[str, float]:
        """Nanoseconds a repetition of the body: the slope between two lengths, medians."""
        short, long = 100, 1100
        times = {}
        for steps in (short, long):
            queues = self.schedule(body, steps)
            self.launch(queues, replicas)
            self.check_abort()
            times[steps] = self.launch(queues, replicas, repeats=repeats)
        low, high = (np.array(times[steps]) for steps in (short, long))
        nanoseconds = 1e3 / (long - short)
        return {
            "ns": float(np.median(high) - np.median(low)) * nanoseconds,
            "ns_best": float(high.min() - low.min()) * nanoseconds,
            "launch_us": float(np.median(low)),
        }


def bodies(run: Runner) -> dict[str, Callable[[int], list[list[int]]]]:
    """What is measured, by name; each gives the instructions of repetition ``step``."""
    word = run.word

    def counter(scope: str, ordinal: int) -> list[int]:
        return word("COUNTER", scope=run.m["scopes"].index(scope), ordinal=ordinal + 1)

    def barrier(kind: str, step: int) -> list[int]:
        return word("CLUSTER") if kind == "cluster" else counter(kind, step)

    def exchange(through: str, kind: str) -> Callable[[int], list[list[int]]]:
        code = run.m["through"].index(through)
        return lambda s: [
            word("EXCHANGE", left=s % 2, to=(s + 1) % 2, through=code),
            barrier(kind, s),
        ]

    def step(vertices: int, through: str, kind: str) -> Callable[[int], list[list[int]]]:
        code = run.m["through"].index(through)
        return lambda s: [
            word(f"STEP{vertices}", left=(s + 1) % 3, right=s % 3, to=(s + 2) % 3, through=code),
            barrier(kind, s),
        ]

    def without_barrier(body: Callable[[int], list[list[int]]]) -> Callable[[int], list[list[int]]]:
        return lambda s: body(s)[:1]

    roads = (
        ("peers", "cluster"),
        ("global", "cluster"),
        ("global_relaxed", "cluster"),
        ("global", "replica"),
        ("rows", "cluster"),
        ("pull", "cluster"),
        ("global", "grid"),
        ("global_relaxed", "grid"),
    )
    table: dict[str, Callable[[int], list[list[int]]]] = {
        "nop": lambda _: [word("NOP")],
        "barrier cluster": lambda _: [word("CLUSTER")],
        "barrier replica": lambda s: [counter("replica", s)],
        "barrier grid": lambda s: [counter("grid", s)],
    }
    table |= {f"exchange {t} {k}": exchange(t, k) for t, k in roads if t not in ("rows", "pull")}
    for vertices in (1, 2, 4, 8):
        table |= {f"step{vertices} {t} {k}": step(vertices, t, k) for t, k in roads}
        table[f"step{vertices} alone"] = without_barrier(step(vertices, "peers", "cluster"))
    return table


def check(run: Runner, name: str, body: Callable[[int], list[list[int]]], replicas: int) -> float:
    """Largest error of a checked body over 50 repetitions: states of all workers."""
    steps = 50
    run.launch(run.schedule(body, steps), replicas)
    run.check_abort()
    workers, hidden = replicas * run.m["workers"], run.m["hidden"]
    dump = run.read("dump", np.float32).reshape(-1, *run.state_shape)[:workers]
    if name.startswith("step"):
        vertices = int(name[4])
        expected = run.model.reference(steps)
        # The last slot written; through global memory it is read back from the pool.
        slot, want = (steps + 1) % 3, expected[-1]
        got = dump[:, slot] if "global" not in name else _pool(run, replicas)[:, slot]
        if "pull" in name:  # the last step is not pulled: each worker has its own units
            units = run.m["units"]
            own = got.reshape(replicas, run.m["workers"], *got.shape[1:])
            got = np.concatenate(
                [own[:, r, :, r * units : (r + 1) * units] for r in range(run.m["workers"])], axis=-1
            )
        return float(np.abs(got[:, :vertices] - want[:vertices]).max())
    first = run.model.states[0, 0].astype(np.float64)
    want = np.roll(first, -steps * run.m["units"] % hidden) + steps
    slot = steps % 2
    got = dump[:, slot, 0] if "peers" in name else _pool(run, replicas)[:, slot, 0]
    return float(np.abs(got - want).max())


def _pool(run: Runner, replicas: int) -> NDArray[np.float32]:
    return run.read("pool", np.float32).reshape(-1, *run.state_shape)[:replicas]


def provoke_abort(run: Runner) -> dict[str, Any]:
    """Worker 5 never arrives at the chip-wide barrier of instruction 12."""
    limit_us = 20_000
    table = bodies(run)
    words = run.schedule(lambda s: table["step1 peers cluster"](s), 5)[:-1].tolist()
    barrier = run.word("COUNTER", scope=0, ordinal=1)
    tail = [run.word("STEP1", left=1, right=0, to=2), run.word("CLUSTER"), run.word("END")]
    queue = np.array([*words, barrier, *tail], np.int32)
    queues = np.repeat(queue[None], run.total, axis=0)
    queues[5, len(words)] = run.word("NOP")
    start = time.perf_counter()
    run.launch(queues, run.replicas, limit_us=limit_us)
    seconds = time.perf_counter() - start
    progress = run.read("progress", np.int32)
    record = run.abort_record()
    try:
        run.check_abort()
        message = "no abort was seen"
    except Exception as error:
        message = str(error)
    return {
        "limit_us": limit_us,
        "host_ms": 1e3 * seconds,
        "record": record,
        "message": message,
        "workers_not_waiting": np.flatnonzero(progress < 0).tolist(),
        "expected": {"instruction": len(words), "worker": 5, "missing": 1},
    }


def run(out: Path, result: Path) -> None:
    """Check, measure, abort, print, save."""
    runner = Runner(out)
    device = runner.device
    print(device, "clusters of 16:", runner.replicas, flush=True)
    table = bodies(runner)
    record: dict[str, Any] = {
        "experiment": 0,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": device.name,
        "driver": device.driver_version,
        "multiprocessors": device.multiprocessors,
        "commit": runner.m["commit"],
        "registers": runner.m["registers"],
        "sigmoid": runner.m["sigmoid"],
        "command": "python benchmarks/experiment0.py run OUT RESULT",
        "resident_clusters": {},
        "errors": {},
        "measurements": {},
    }
    for cluster in (2, 4, 8, 16):
        shape = attrs.evolve(runner.shape, workers=cluster, cluster=cluster)
        record["resident_clusters"][cluster] = runner.kernel.resident_clusters(shape)
    save = lambda: result.write_text(json.dumps(record, indent=1))  # noqa: E731
    for replicas in dict.fromkeys((1, runner.replicas)):
        for name, body in table.items():
            if name.split()[0] in ("nop", "barrier") or name.endswith("alone"):
                continue
            error = check(runner, name, body, replicas)
            record["errors"][f"{name} x{replicas}"] = error
            if not error < (2e-5 if name.startswith("step") else 1e-3):
                print(f"WRONG {name} x{replicas}: {error}", flush=True)
    save()
    for replicas in dict.fromkeys((1, runner.replicas)):
        for name, body in table.items():
            record["measurements"][f"{name} x{replicas}"] = runner.slope(body, replicas)
        save()
    record["abort"] = provoke_abort(runner)
    after = check(runner, "step1 peers cluster", table["step1 peers cluster"], runner.replicas)
    record["abort"]["error_of_the_next_launch"] = after
    record["launches"] = device.launches
    save()
    print("largest error", max(record["errors"].values()), "| launches", device.launches)
    print(json.dumps(record["abort"]))
    for name, values in record["measurements"].items():
        print(f"{name:34s} {values['ns']:8.0f} {values['ns_best']:8.0f} ns", flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["build", out, *rest]:
            build(Path(out), rest == ["--approximate"])
        case ["run", out, result]:
            run(Path(out), Path(result))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()

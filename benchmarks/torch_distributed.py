"""A training step inside PyTorch on one GPU, and on several of a host with `DistributedDataParallel`.

    dnc compile examples/treelstm.dn -o BUILD --target cuda
    python benchmarks/torch_distributed.py BUILD DATA.jsonl [--gpus 1 2] [--batches 128,256,512]

In: a build with a loss, and samples. Out: milliseconds of a step by batch (samples of all GPUs together) and
GPUs, medians over repeats. First it checks that all processes hold the same weights, to the bit, after some
steps, and that these are those of one GPU but for the order of sums.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc.torch
from benchmarks import common

PORT, SEED, CHECKED, WARM_UP, TOLERANCE = "29517", 1, 8, 30, 1e-4


class Process:
    """One of `count` processes, each with a GPU; without GPUs they share the CPU."""

    def __init__(self, rank: int, count: int, options: argparse.Namespace) -> None:
        self.rank, self.count, self.options = rank, count, options
        on_gpu = torch.cuda.is_available()
        self.device = f"cuda:{rank}" if on_gpu else "cpu"
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
        distributed.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=count)
        if on_gpu:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        self.net = dnc.torch.Module(options.build, options.data, device=self.device, seed=SEED)
        self.called = DistributedDataParallel(self.net) if count > 1 else self.net
        self.samples = self.net.attach(options.data).samples

    def parts(self, size: int, seed: int) -> list[torch.Tensor]:
        """Of shuffled batches of `size` this process's share."""
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))
        whole = self.samples // size * size
        return list(order[:whole].split(size // self.count)[self.rank :: self.count])

    def optimizer(self) -> torch.optim.Optimizer:
        """SGD; fused where there is a GPU."""
        return torch.optim.SGD(self.net.parameters(), lr=1e-3, fused=self.device != "cpu")

    def step(self, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        """A whole training step."""
        loss = self.called(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def wait(self) -> None:
        """Until all processes have come here and their GPUs have nothing to do."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        distributed.barrier()

    def milliseconds(self, size: int) -> list[float]:
        """Of a step, one number a repeat."""
        optimizer, found = self.optimizer(), list[float]()
        for repeat in range(self.options.repeats):
            batches = self.net.batches(itertools.cycle(self.parts(size, repeat)))
            for batch in itertools.islice(batches, WARM_UP):
                self.step(batch, optimizer)
            self.wait()
            begin = time.perf_counter()
            for batch in itertools.islice(batches, self.options.steps):
                self.step(batch, optimizer)
            self.wait()
            found.append((time.perf_counter() - begin) / self.options.steps * 1e3)
        return found

    def run(self, folder: Path) -> None:
        """Weights after some steps, then times, into files of the folder."""
        optimizer = self.optimizer()
        for batch in self.net.batches(self.parts(self.options.batches[0], SEED)[:CHECKED]):
            self.step(batch, optimizer)
        torch.save(self.net.state_dict(), folder / f"weights-{self.count}-{self.rank}.pt")
        times = {size: self.milliseconds(size) for size in self.options.batches}
        torch.save((self.net.dnc.device, times), folder / f"times-{self.count}-{self.rank}.pt")
        distributed.destroy_process_group()


def work(rank: int, count: int, options: argparse.Namespace, folder: Path) -> None:
    """What a process does."""
    Process(rank, count, options).run(folder)


def difference(folder: Path, count: int, first: int) -> float:
    """The largest relative difference of weights from those of `first` GPUs."""
    own = [torch.load(folder / f"weights-{count}-{rank}.pt", map_location="cpu") for rank in range(count)]
    other = torch.load(folder / f"weights-{first}-0.pt", map_location="cpu")
    for name, value in own[0].items():
        if not all(torch.equal(value, each[name]) for each in own[1:]):
            raise SystemExit(f"{count} GPUs: {name} differs between processes")
    return max(float((own[0][name] - other[name]).abs().max() / other[name].abs().max()) for name in other)


def main() -> None:
    """Prints a line for every batch and number of GPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--batches", type=lambda text: [int(each) for each in text.split(",")], default=[128, 256, 512]
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for count in options.gpus:
            multiprocessing.spawn(work, (count, options, folder), nprocs=count)
            differs = difference(folder, count, options.gpus[0])
            if not differs < TOLERANCE:
                raise SystemExit(
                    f"{count} GPUs: weights differ by {differs:.1e} from those of {options.gpus[0]}"
                )
            device, times = torch.load(folder / f"times-{count}-0.pt")
            for size, each in times.items():
                middle = statistics.median(each)
                points.append(
                    {
                        "gpus": count,
                        "batch": size,
                        "milliseconds": each,
                        "median": middle,
                        "difference": differs,
                    }
                )
                print(
                    f"{count} GPUs, batch {size:5}: {middle:8.3f} ms, {size / middle * 1e3:10,.0f} samples/s",
                    flush=True,
                )
    result = common.stamp(device, options.commit) | {"torch": torch.__version__, "points": points}
    common.write(options.out or common.default_out(device, "torch-distributed"), result)


if __name__ == "__main__":
    main()

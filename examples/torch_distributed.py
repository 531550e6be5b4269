"""A Tree-LSTM on several GPUs: every one has its part of each batch, and all make the same step.

    dnc compile examples/treelstm.dn -o build --target cpu,cuda --set embed=64,hidden=64
    torchrun --standalone --nproc-per-node 2 examples/torch_distributed.py build \
        examples/data/sentiment-{train,dev}.jsonl

A process for every GPU, as many as torchrun is told of; without GPUs they share the CPU. PyTorch's
`DistributedDataParallel` sends weights around once, and makes the mean of all gradients in `backward()`.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import dnc.torch


def main() -> None:
    """Trains, and prints the mean loss of every epoch and of the dev set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--batch", type=int, default=32, help="samples of all processes together")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save", help="a checkpoint of dnc, at the end")
    options = parser.parse_args()
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")

    net = dnc.torch.Module(options.build, options.train, device=device, seed=1)
    together = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    samples, size = net.attach(options.train).samples, options.batch // processes
    whole = samples // options.batch * options.batch  # all processes make as many steps
    order = torch.Generator().manual_seed(1)  # the same in all processes
    for epoch in range(1, options.epochs + 1):
        parts = torch.randperm(samples, generator=order)[:whole].split(size)
        total = torch.zeros((), device=device)
        for batch in net.batches(parts[rank::processes]):
            loss = together(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        distributed.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / len(parts):.3f}", flush=True)
    if rank == 0:
        net.eval()
        dev = net.attach(options.dev)
        with torch.no_grad():
            print(f"dev: loss {net(range(dev.samples))['loss'].item():.3f}")
        if options.save:
            net.save(options.save)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Small examples as modules, and what their gradients are compared with."""

from __future__ import annotations

import torch

import dnc.torch
from benchmarks import model_data
from dnc.compiler import compile_model
from tests.models import compare
from tests.models.differences import relative
from tests.models.sizes import SIZES, SMALL, settings
from tests.models.test_against_torch import TOLERANCE
from tests.support.models import EXAMPLES

BATCH = [5, 0, 6, 2]


def opened(name, folder, device="vm", samples=7, **options):
    """A small example as a module with random weights, its data, and the data with numbers for words."""
    build = folder / "build"
    compile_model(EXAMPLES / f"{model_data.program_of(name)}.dn", build, ("cpu",), settings(name, SMALL))
    program = dnc.load(build, "vm").program
    data = model_data.samples(name, program, samples, SIZES)
    net = dnc.torch.Module(build, data, device=device, seed=compare.SEED, **options)
    with torch.no_grad():
        for key, value in compare._parameters(net.dnc).items():
            getattr(net, key).copy_(torch.from_numpy(value))
    return net, data, model_data.numbered(net.dnc.program, net.dnc.vocabularies, data)


def doubles(net):
    """The parameters in double precision, for a reference."""
    return {
        key: value.detach().double().clone().requires_grad_(value.requires_grad)
        for key, value in net.named_parameters()
    }


def check_gradients(net, expected):
    for key, value in net.named_parameters():
        if value.requires_grad:
            want = expected[key].grad
            found = torch.zeros_like(value) if value.grad is None else value.grad.to_dense()
            want = torch.zeros_like(value) if want is None else want
            assert relative(found, want) < TOLERANCE, key

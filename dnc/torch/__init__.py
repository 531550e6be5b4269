"""dnc inside PyTorch: `dnc.torch.Module(build)` is an `nn.Module` (docs/pytorch.md)."""

from dnc.torch.encoded import BatchEncoder, Encoded
from dnc.torch.module import Module

__all__ = ["BatchEncoder", "Encoded", "Module"]

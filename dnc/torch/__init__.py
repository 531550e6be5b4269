"""dnc inside PyTorch: `dnc.torch.Module(build)` is an `nn.Module` (docs/pytorch.md)."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    how = "in dnc's folder: pip install -e '.[torch]'"
    raise ModuleNotFoundError(f"dnc.torch: PyTorch is not installed ({how})", name="torch") from None

from dnc.torch.encoded import BatchEncoder, Encoded
from dnc.torch.module import Module

__all__ = ["BatchEncoder", "Encoded", "Module"]

"""What people and tests know of optimizers covers the table, `dnc/ir/optimizers.py`."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from dnc.cli import run as cli
from dnc.ir.optimizers import COEFFICIENTS, OPTIMIZERS, SETTINGS
from tests.cpu.test_optimizers import TORCH
from tests.support.optimizers import FORMULAS, RATES

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
OF_SOME = ("momentum", "beta1", "beta2", "epsilon")  # options whose help says of which optimizers they are


@pytest.mark.parametrize(
    "where, known",
    {
        "FORMULAS of tests/support/optimizers.py": FORMULAS,
        "RATES of tests/support/optimizers.py": RATES,
        "TORCH of tests/cpu/test_optimizers.py": TORCH,
        "OPTIMIZER of dnc/cli/run.py": cli.OPTIMIZER.split(".")[0].split(", "),
        "the table of docs/training.md": re.findall(
            r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.M
        ),
    }.items(),
)
def test_every_optimizer_is_there(where, known):
    missing = OPTIMIZERS.keys() - set(known)
    assert not missing, f"missing from {where}"


@pytest.mark.parametrize("name", OF_SOME)
def test_help_says_whose_a_setting_is(name):
    (option,) = get_type_hints(cli.run, include_extras=True)[name].__metadata__
    owners = [each.name for each in OPTIMIZERS.values() if name in each.settings]
    assert option.help.split(". [")[0].rstrip(".") == f"Of {', '.join(owners)}"
    defaults = {f"{OPTIMIZERS[owner].settings[name]:g}" for owner in owners}
    assert len(defaults) > 1 or option.help.endswith(f" [default: {defaults.pop()}]")


@pytest.mark.parametrize("entry", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_entry_uses_what_schedules_have(entry):
    """A new setting, or coefficient, is one of `SETTINGS`, of `COEFFICIENTS` and of `Hyper`, too."""
    from dnc.ir.opdef import NUMPY_MATH

    assert entry.settings.keys() <= SETTINGS.keys()
    values = entry.step(NUMPY_MATH, dict.fromkeys(COEFFICIENTS, 0.5), 1.0, 1.0, *([0.0] * len(entry.states)))
    assert len(values) == 1 + len(entry.states)

"""The first moments of a command: what is not loaded, and Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = "from dnc.cli import main; main()"


def test_pytorch_is_not_imported(tmp_path: Path) -> None:
    """TVM would, where it is there; here it is a package that ends the process."""
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os; os._exit(3)\n")
    (tmp_path / "m.dn").write_text(
        "model M(classes = 2)\nstruct P = P(x: vector<4>, label: class<classes>)\nparam W: [classes, 4]\n"
        "loss sum(p in all(P)) cross_entropy(W @ p.x, p.label)\n"
    )
    (tmp_path / "data.jsonl").write_text('{"x": [1, 2, 3, 4], "label": 1}\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path])}
    compiled = ["compile", "m.dn", "-o", "build"]
    trained = ["run", "build", "--data", "data.jsonl", "--epochs", "1", "--device", "cpu", "--run-dir", "run"]
    for line in (compiled, trained):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "last.safetensors").exists()


def test_an_interrupt_while_the_command_line_is_imported(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dnc", "check"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")

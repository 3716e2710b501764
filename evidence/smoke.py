"""Try a built wheel and sdist in empty environments: ``python evidence/smoke.py DIST``.

``DIST`` is the folder of ``python -m build``. Each file is installed with the extra ``train`` into
a virtual environment of its own, and used there as a newcomer would: list the recipes, train on
digits, explain the run, evaluate weights that come with it. Arguments after the folder go to every
pip call (an index of your own).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

COMMANDS = [
    ["--version"],
    ["operators"],
    ["models"],
    ["train", "digits", "training.epochs=1"],
    ["evaluate", "runs/digits"],
    ["explain", "runs/digits"],
    ["evaluate", "pretrained:digits"],
]
NOT_IN_THE_WHEEL = (
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('evidence') is not None)"
)


def smoke(package: Path, pip_options: list[str]) -> None:
    """Install one file into an empty environment and run :data:`COMMANDS` in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"

        install = ["-m", "pip", "install", "--quiet", *pip_options, f"{package}[train]"]
        subprocess.run([str(python), *install], check=True)
        subprocess.run([str(python), "-c", NOT_IN_THE_WHEEL], cwd=folder, check=True)
        for command in COMMANDS:
            print(f"{package.name}: fredholm {' '.join(command)}", flush=True)
            subprocess.run([str(python), "-m", "fredholm", *command], cwd=folder, check=True)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, pip_options = Path(sys.argv[1]), sys.argv[2:]
    packages = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(packages) != 2:
        raise SystemExit(f"{folder}: expected one wheel and one sdist, got {len(packages)} files")
    for package in packages:
        smoke(package.resolve(), pip_options)
    print("both install and run in empty environments")


if __name__ == "__main__":
    main()

"""Try a built wheel and sdist in empty environments: ``python evidence/smoke.py DIST [--lowest]``.

``DIST`` is the folder of ``python -m build``. Each file is installed with the extra ``train`` into
an empty virtual environment and used as by a new user: read the recipes, list operators and models,
train on digits, explain the run, evaluate the included weights. ``--lowest`` tries only the wheel,
with the lowest versions that ``pyproject.toml`` allows, which ``uv`` installs. Other arguments are
passed to every call of pip or uv (a different index, ``torch==2.13.0``).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
COMMANDS = [
    ["--version"],
    ["operators"],
    ["models"],
    ["train", "digits", "training.epochs=1"],
    ["evaluate", "runs/digits"],
    ["explain", "runs/digits"],
    ["evaluate", "pretrained:digits"],
    ["explain", "pretrained:digits"],
]
NOT_IN_THE_WHEEL = (
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('evidence') is not None)"
)
RECIPES_ARE_READ = (
    "from fredholm.training import list_recipes, load_recipe\n"
    "names = list_recipes()\n"
    "assert 'digits' in names, names\n"
    "print(len([load_recipe(name) for name in names]), 'recipes')"
)

Install = Callable[[Path, Path, list[str]], None]
"""Install a package for a Python, with options of the installer."""


def newest(python: Path, package: Path, options: list[str]) -> None:
    """Install by pip, like a user."""
    run(python, "-m", "pip", "install", "--quiet", *options, f"{package}[train]")


def lowest(python: Path, package: Path, options: list[str]) -> None:
    """Install by uv with the lowest versions of the project's direct requirements."""
    uv = ["uv", "pip", "install", "--quiet", "--python", str(python)]
    # "lowest-direct" takes the lowest versions of the packages in the command. With the wheel in
    # the command that would be only the wheel, so its requirements are read from the project.
    required = ["--resolution", "lowest-direct", "-r", str(PROJECT), "--extra", "train"]
    run(*uv, *required, *options)
    run(*uv, "--no-deps", package)


def smoke(package: Path, install: Install, options: list[str]) -> None:
    """Install one file into an empty environment and run :data:`COMMANDS` in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        scripts = "bin"
        if sys.platform == "win32":
            scripts = "Scripts"
        python = environment / scripts / "python"

        install(python, package, options)
        # In an empty folder Python cannot import the checkout's modules by accident.
        for program in (NOT_IN_THE_WHEEL, RECIPES_ARE_READ):
            run(python, "-c", program, folder=folder)
        for command in COMMANDS:
            print(f"{package.name}: fredholm {' '.join(command)}", flush=True)
            run(python, "-m", "fredholm", *command, folder=folder)


def run(*command: object, folder: str | None = None) -> None:
    """Run a command, which must succeed."""
    subprocess.run([str(word) for word in command], cwd=folder, check=True)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    packages = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(packages) != 2:
        raise SystemExit(f"{folder}: expected one wheel and one sdist, got {len(packages)} files")
    install = newest
    if "--lowest" in options:
        options.remove("--lowest")
        install = lowest
        packages = [package for package in packages if package.suffix == ".whl"]
    for package in packages:
        smoke(package.resolve(), install, options)
    names = ", ".join(package.name for package in packages)
    print(f"installed and run in empty environments: {names}")


if __name__ == "__main__":
    main()

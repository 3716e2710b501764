"""``python -m fredholm``: the command line, for launchers such as torchrun."""

import sys

from .lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

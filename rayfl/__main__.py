"""``python -m rayfl``."""

import sys

from rayfl.cli import main

if __name__ == "__main__":
    sys.exit(main())

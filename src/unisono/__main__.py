"""`python -m unisono`, the same as `unisono`."""

import sys

from unisono.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m compat``, with ``tests`` on the path: see `compat.running`."""

import sys

from compat.running import main

if __name__ == "__main__":
    sys.exit(main())

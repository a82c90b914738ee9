"""``python -m torture``, with ``tests`` on the path: see `torture.running`."""

import sys

from torture.running import main

if __name__ == "__main__":
    sys.exit(main())

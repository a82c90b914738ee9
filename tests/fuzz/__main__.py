"""``python -m fuzz``, with ``tests`` and the project's root on the path: see `fuzz.running`."""

import sys

from fuzz.running import main

if __name__ == "__main__":
    sys.exit(main())

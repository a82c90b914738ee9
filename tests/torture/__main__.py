"""``python -m torture``, with ``tests`` on the path: see `torture.scenario_runner`."""

import sys

from torture.scenario_runner import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks.gateway.reader``: the reader process, which contains the clients of a measurement.

The process reads an order from standard input, and writes figures to standard output.
"""

import gc
import json
import sys

import uvloop

from benchmarks.gateway.measures import MEASURES
from benchmarks.gateway.order import Order


def main() -> None:
    order = Order(**json.load(sys.stdin))
    gc.disable()  # a collection would delay the reader
    json.dump(uvloop.run(MEASURES[order.measure](order)), sys.stdout)


if __name__ == "__main__":
    main()

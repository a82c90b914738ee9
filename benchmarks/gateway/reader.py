"""``python -m benchmarks.gateway.reader``: the client; an order on standard input, figures on standard output."""

import gc
import json
import sys

import uvloop

from benchmarks.gateway.measures import MEASURES
from benchmarks.gateway.order import Order


def main() -> None:
    order = Order(**json.load(sys.stdin))
    gc.disable()  # it keeps much and throws nothing away: nothing is to be found, and the search would delay readings
    json.dump(uvloop.run(MEASURES[order.measure](order)), sys.stdout)


if __name__ == "__main__":
    main()

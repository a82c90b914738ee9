"""Reproducible or random generation of test cases."""

import os

EVERY_TIME_OTHERS = bool(os.environ.get("TAILRACE_TEST_OTHER_CASES"))
"""A normal run repeats the same cases; the nightly run generates new ones."""

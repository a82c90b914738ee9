"""Reproducible or random generation of test cases."""

import os

EVERY_TIME_OTHERS = bool(os.environ.get("TAILRACE_TEST_OTHER_CASES"))
"""Only the nightly run generates new cases."""

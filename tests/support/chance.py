"""Whether tests that make their cases up make the same ones every time, or others."""

import os

EVERY_TIME_OTHERS = bool(os.environ.get("TAILRACE_TEST_OTHER_CASES"))
"""A run says the same of the same code; the nightly one looks further, at other cases every time."""

"""What holds for every test."""

from hypothesis import settings

from support.chance import EVERY_TIME_OTHERS

# Shared machines pause for longer than any sensible deadline.
settings.register_profile(
    "tailrace",
    deadline=None,
    derandomize=not EVERY_TIME_OTHERS,
    max_examples=300 if EVERY_TIME_OTHERS else 60,
)
settings.load_profile("tailrace")

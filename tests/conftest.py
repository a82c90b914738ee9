"""What holds for every test."""

from hypothesis import settings

# Shared machines pause for longer than any sensible deadline.
settings.register_profile("tailrace", deadline=None)
settings.load_profile("tailrace")

"""Common code of the history converters and model clients of all providers."""

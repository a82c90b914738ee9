"""Code that the history converters and model clients of all providers share."""

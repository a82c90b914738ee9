"""HTTP code that all protocols share."""

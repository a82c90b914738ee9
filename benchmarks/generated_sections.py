"""The sections of documents that benchmarks write."""


def replace_section(page: str, begin: str, end: str, content: str) -> str:
    """Return a page with the text between two markers replaced.

    Args:
        page: The page.
        begin: The marker before the section.
        end: The marker after the section.
        content: The new text of the section.

    Raises:
        ValueError: The page does not have both markers.
    """
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the page has no place for figures: the markers {begin!r} and {end!r} are missing")
    return f"{before}{begin}\n{content}\n{end}{after}"

"""The servers that tailrace is compared with."""

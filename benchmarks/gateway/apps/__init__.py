"""The servers that tailrace is compared with, as their users write them, and a byte relay, whose cost is the lower limit."""

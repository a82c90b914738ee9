"""The servers that tailrace is measured beside, each as its users write it, and a relay that is the limit."""

"""The servers that tailrace is compared with, each as its users write it, and a byte relay as the lower limit."""

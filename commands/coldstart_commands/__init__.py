"""One module per command: declare arguments, one domain call, render."""

"""Chapter 5. layers.py: f, g, columns, rows, heads, a block; sums.py: the loss, the norm, how wide it pays."""

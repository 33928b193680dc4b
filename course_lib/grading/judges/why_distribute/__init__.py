"""Chapter 1. exercises.py: bytes, days, utilisation, the parallel share, rows of text, nodes to order."""

"""Chapter 7. attention.py: recomputation, attention from blocks around a ring; numbers.py: bytes, seconds, places."""

"""Chapter 7. layers.py: gather and scatter, recomputation; attention.py: attention from blocks around a ring;
numbers.py: bytes, seconds, places.
"""

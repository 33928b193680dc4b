"""Chapter 9. layouts.py: places, groups, the best layout; gradients.py: added up where, one norm;
checkpoints.py: pieces for another layout, how often to save.
"""

"""Chapter 8. routing.py: which experts, rows in blocks, balance; placement.py: who holds them, their gradients;
dispatch.py: tokens there and home again, how wide an expert has to be for it.
"""

"""Chapter 8. routing.py: which experts, rows in blocks, balance; placement.py: who holds them, dispatch, gradients."""

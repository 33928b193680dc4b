"""Chapter 3. gradients.py: the mean over all ranks' rows, in five ways; plans.py: what travels, and when."""

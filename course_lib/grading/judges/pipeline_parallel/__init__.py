"""Chapter 4. plans.py: stages, layouts, orders of actions; backward.py: gradients between ranks, idle time."""

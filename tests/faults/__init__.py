"""What goes wrong in ranks: every kind of fault, what one could leave behind, and `python -m tests.faults.soak`."""

"""Chapter 2: collectives from send and receive (plans.py), and what alpha and beta say about them (choice.py)."""

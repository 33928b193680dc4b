"""Tools for the authors of the course; readers need none of them. The Makefile calls each."""

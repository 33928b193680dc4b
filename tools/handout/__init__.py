"""A copy of the course for students, `make handout DIR=...`, and what is different in it."""

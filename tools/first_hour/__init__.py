"""A stranger's first hour: a new user, a fresh clone, README's commands. README's own tests keep the list whole."""

"""Ranks: where they come from, what they are told, where they are, and how a launch ends."""

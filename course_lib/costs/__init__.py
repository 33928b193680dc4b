"""Closed forms, without torch: what memory, messages, idle time and money come to, before anything is run."""

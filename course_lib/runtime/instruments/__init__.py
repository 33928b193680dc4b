"""Instruments: bytes sent, bytes held and time spent, recorded inside a rank."""

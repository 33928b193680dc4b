"""What the course's commands read their options with: a parser that complains in one line, and checked numbers."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line on stderr, without the usage."""
        print(f"{self.prog}: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
        raise SystemExit(2)


def whole(least: int) -> Callable[[str], int]:
    """For argparse: a whole number of at least `least`."""

    def number(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least {least}")
        return int(text)

    return number


def above_zero(text: str) -> float:
    """For argparse: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number

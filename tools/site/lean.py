"""Highlighted code without a <span> around what has no colour of its own: names, signs and spaces, half of a page."""

from collections.abc import Iterable
from typing import IO, Any

from pygments.formatters import HtmlFormatter
from pygments.token import Name, Operator, Punctuation, Text, Whitespace

PLAIN = {Name, Operator, Punctuation, Whitespace}


class LeanFormatter(HtmlFormatter):
    """Pygments' own, for Sphinx and for listings."""

    def format_unencoded(self, tokensource: Iterable[tuple[Any, str]], outfile: IO[str]) -> None:
        super().format_unencoded(((Text if kind in PLAIN else kind, text) for kind, text in tokensource), outfile)

"""The text that every CPython carries: its own help topics, half a megabyte, each paragraph once.

A module of its own, whose import makes the text: 50 ms, which ranks save where the process that they are forked from
has imported it. Topics quote each other, and a paragraph that stands in two of them could be learnt in the one and
tested in the other; so each is kept once, whatever its indentation.
"""

from pydoc_data.topics import topics

_paragraphs: dict[str, str] = {}
for _name in sorted(topics):
    for _paragraph in topics[_name].split("\n\n"):
        _paragraphs.setdefault(" ".join(_paragraph.split()), _paragraph.strip("\n"))
TEXT: bytes = "\n\n".join(_paragraphs.values()).encode()

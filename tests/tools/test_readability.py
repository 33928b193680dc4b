"""What counts as prose, and that plain sentences are easier than long ones."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytest.importorskip("textstat")

from tools.readability import prose_of, scores  # noqa: E402


def notebook(*texts):
    return new_notebook(cells=[new_code_cell("x = 1"), *map(new_markdown_cell, texts)])


def test_prose_is_sentences_without_marks_headings_tables_code_and_sources():
    text = """# Four ranks

A **rank** calls `send`, see [chapter 2](02.ipynb#Which-wire?):

```
send   receive
```

| a | b |
|---|---|

- One item
- and
  another. Two sentences?

> S = 1 / P

**Sources.** Somebody 2020."""
    assert prose_of(notebook(text)).splitlines() == [
        "A rank calls send, see chapter 2.", "One item.", "and another. Two sentences?"]


def test_short_words_in_short_sentences_are_easier_to_read():
    plain = notebook("The ring sends a part. Each rank adds it up.")
    long = notebook("Communication infrastructure considerations necessitate hierarchical decomposition.")
    (ease, grade), (other_ease, other_grade) = scores(plain), scores(long)
    assert ease > 80 > other_ease and grade < 5 < other_grade

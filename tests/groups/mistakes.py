"""What a rank is told for its mistakes: all of them in one launch, to be compared with tests/PACKAGE/sentences.txt.

Apart from the tests, since ranks import it: pytest would cost them a second.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any


def answers(mistakes: Mapping[str, Callable[[], Any]]) -> str:
    """A line for each mistake: its name, the kind of its error, and what that says, but addresses, which vary."""
    lines = []
    for name, mistake in mistakes.items():
        try:
            lines.append(f"{name}: no error, but {mistake()}")
        except (ValueError, RuntimeError) as error:
            lines.append(f"{name}: {type(error).__name__}: {error}")
    return re.sub(r"\b0x[0-9a-f]+", "0x...", "\n".join(lines))

"""The commands that a page in Markdown shows, as a reader would type them."""

import re
from pathlib import Path

COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(?:make$|(?:make|python3?|pip|conda|jupyter|nbgrader) )")


def commands_in(path: Path) -> list[str]:
    """Each once, in order: whole lines of code, and what stands between backquotes and begins as a command does."""
    text = path.read_text(encoding="utf-8")
    found, fenced = [], None
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            fenced = None if fenced is not None else fence[1]
        elif fenced in ("", "sh", "bash", "console") or (fenced is None and line.startswith("    ")):
            found.append(re.split(r"\s{2,}|\s#", line.strip())[0])
    prose = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\|)", prose):
        if not paragraph.startswith("    "):
            found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", paragraph)]
    return list(dict.fromkeys(command for command in found if COMMAND.match(command)))

"""Say why this Python cannot make the environment. Runs under any Python, so no new syntax here."""

import sys

LOWEST = (3, 11)


def complaint(version, missing):
    """What is wrong with a Python of this `version` that lacks the modules `missing`, or None."""
    found = ".".join(str(number) for number in version[:3])
    if tuple(version[:2]) < LOWEST:
        return "The course needs Python %d.%d or newer, and this one is %s (%s)\n" % (
            LOWEST + (found, sys.executable)
        ) + "  Name a newer one: make test PYTHON=python3.12"
    if missing:
        return "Python %s (%s) lacks %s, which makes virtual environments\n" % (
            found, sys.executable, " and ".join(missing)
        ) + "  Debian and Ubuntu keep it apart: sudo apt-get install python%d.%d-venv" % tuple(version[:2])
    return None


def missing_modules():
    """Those of venv and ensurepip that this Python lacks."""
    missing = []
    for name in ("venv", "ensurepip"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    return missing


if __name__ == "__main__":
    problem = complaint(sys.version_info, missing_modules())
    if problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(1)

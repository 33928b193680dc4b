"""The teacher's first password, and for each user of the hub an account of its own in the container."""

import os
import pwd
import secrets
import subprocess
from pathlib import Path

from tornado.web import HTTPError

FIRST_UID = 20_000  # below are the system's accounts, root among them


def password_of(administrator: str, folder: Path) -> str:
    """The first password, from a file in `folder` that only its owner reads; made at the first call."""
    path = folder / f"{administrator}_password"
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(12) + "\n")
    return path.read_text(encoding="utf-8").strip()


def give_account(name: str, homes: Path) -> None:
    """Make the user's account in this container, where it lacks one.

    A new container has no accounts, and the volume with the homes stays: a user keeps the number that owns the home.

    Raises HTTPError for the name of an account of the system's, such as root, and for a home that such a one owns.
    """
    home = homes / name
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        uid = home.stat().st_uid if home.exists() else next_uid(homes)
        if uid >= FIRST_UID:
            subprocess.run(["useradd", "--create-home", "--home-dir", home, "--uid", str(uid),
                            "--key", "HOME_MODE=0700", "--shell", "/bin/bash", name], check=True)
    if uid < FIRST_UID:
        raise HTTPError(403, f"{name} is an account of the system's, or its home is: ask for another name")


def next_uid(homes: Path) -> int:
    """The first number that owns no home."""
    return max([FIRST_UID - 1, *(home.stat().st_uid for home in homes.iterdir())]) + 1

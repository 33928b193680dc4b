"""JupyterLab as the course opens it. Its settings lie in this folder and are named to JupyterLab by its environment
variables: nothing is written into an environment or over a reader's own settings, which still come first."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent


def settings_in_environment(teach: bool = False) -> dict[str, str]:
    """The environment variables that JupyterLab needs to find the course's settings and its extension.

    A teacher has nbgrader's menus besides, which a reader does not need.
    """
    folders = [HERE / "config"] if teach else [HERE / "config", HERE / "self_study"]
    return {"JUPYTER_CONFIG_PATH": joined("JUPYTER_CONFIG_PATH", folders),
            "JUPYTER_PATH": joined("JUPYTER_PATH", [HERE / "share"])}


def joined(name: str, folders: list[Path]) -> str:
    """`folders` after what the variable `name` has already."""
    before = os.environ.get(name, "").split(os.pathsep)
    return os.pathsep.join([folder for folder in before if folder] + [str(folder) for folder in folders])

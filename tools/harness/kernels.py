"""Kernels that are reached through files, for whatever starts many of them beside many ranks.

Jupyter finds five free ports, lets go of them, and the kernel binds them a second or more later. A rank that starts in
between may get one of them; the kernel then ends before its first word. A file in a folder of its own has no such race.
Windows has ports only.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.manager import AsyncKernelManager, KernelManager
from traitlets import CaselessStrEnum, default


class _ByFiles(ConnectionFileMixin):
    transport = CaselessStrEnum(["tcp", "ipc"], default_value="tcp" if sys.platform == "win32" else "ipc")

    _folder: str | None = None

    @default("connection_file")
    def _in_a_short_folder(self) -> str:
        """Jupyter puts the sockets beside this file, and the path of a socket may have about 100 characters."""
        self._folder = tempfile.mkdtemp(prefix="kernel-")
        return str(Path(self._folder, "k.json"))

    def cleanup_connection_file(self) -> None:
        super().cleanup_connection_file()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class KernelManagerByFiles(_ByFiles, KernelManager):
    """For jupyter_client itself, and nbval."""


class AsyncKernelManagerByFiles(_ByFiles, AsyncKernelManager):
    """For nbclient."""

"""Kernels of the tests and of `make notebooks` cannot lose a port to a rank: they are found without one."""

import asyncio
import sys
from pathlib import Path

import pytest

from tools.harness.kernels import AsyncKernelManagerByFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sockets that are files")


async def answered(manager: AsyncKernelManagerByFiles) -> list[bool]:
    """Whether each of the five sockets was there as a file, once the kernel had answered."""
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=120)
    found = [Path(f"{manager.ip}-{number}").is_socket() for number in manager.ports]
    client.stop_channels()
    await manager.shutdown_kernel()
    return found


def test_such_a_kernel_answers_through_files_and_leaves_none():
    manager = AsyncKernelManagerByFiles(kernel_name="python3")
    assert asyncio.run(answered(manager)) == [True] * 5
    assert not Path(manager.connection_file).parent.exists()

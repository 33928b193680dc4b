"""A pytest plugin: nbval's kernels, which run beside three workers' ranks, are reached through files, not ports."""

import nbval.kernel

from tools.harness.kernels import KernelManagerByFiles

nbval.kernel.KernelManager = KernelManagerByFiles

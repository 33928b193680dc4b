"""Execute notebooks once, for all who ask what they print: build/executed/NAME.ipynb; `pytest notebooks` compares.

    python -m tools.run_notebooks [NB ...] [--text FILE] [--jobs N]      all, on Python's help topics, one by one

Every cell runs, in a fresh kernel, failures included. `executed` in its metadata says its CPU seconds (the kernel's and
those of all processes below it), its seconds by the clock, and what became of its headlines over
other data (tests/claims), asked right after it; in the notebook's metadata what ran it, and how many side by side.
"""

import argparse
import ast
import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from tools.harness.kernels import AsyncKernelManagerByFiles
from tools.harness.outputs import error_of

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXECUTED = ROOT / "build" / "executed"
CELL_TIMEOUT_S = 240  # only what hangs: a busy machine takes several times as long as a quiet one
VERDICTS_WITHIN_S = 240
# plt.show() must give the same bytes under every matplotlib, which else signs its pictures; "tight" is the default.
PICTURES = "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Software': None}}"
DRAWS = re.compile(r"\b(Chart|MemoryPanels|RankPanels|shows)\(")  # what tests/claims/cell.py looks at


def client_of(notebook: NotebookNode, folder: Path, begin: Sequence[str] = (), timeout_s: float = CELL_TIMEOUT_S,
              **hooks: Callable) -> NotebookClient:
    """Runs every cell of `notebook` in place, in a fresh kernel of this environment in `folder`: failures too, and a
    cell that hangs is interrupted. `begin` are lines that the kernel runs before; `hooks` are NotebookClient's.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # a kernel called python3 in the author's home must not win
    return NotebookClient(
        notebook, timeout=timeout_s, startup_timeout=CELL_TIMEOUT_S, interrupt_on_timeout=True, allow_errors=True,
        kernel_name="python3", kernel_manager_class=AsyncKernelManagerByFiles, record_timing=False,
        store_widget_state=False, resources={"metadata": {"path": str(folder)}},
        extra_arguments=[PICTURES, *(f"--IPKernelApp.exec_lines={line}" for line in begin)], **hooks)


def environment(**more: str) -> dict[str, str]:
    """Of a kernel whose outputs are compared, and which imports this tree before all else."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "COURSE_LIB_STABLE_OUTPUT": "1", "PYTHONPATH": path, **more}


def digest() -> str:
    """Of all that a notebook may import from here: what another course_lib printed says nothing of this one."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "course_lib").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def cpu_s(kernel: psutil.Process) -> float:
    """User and system seconds of the kernel, of all processes below it, and of those of them that have ended."""
    total = 0.0
    for process in [kernel, *kernel.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


async def verdicts(client: NotebookClient, source: str) -> list[dict[str, str]]:
    """What became of the headlines of the cell that has just run, over data that contradict them: tests/claims."""
    asked = client.kc.execute("", silent=True, store_history=False, user_expressions={"verdicts": (
        f"__import__('tests.claims.contradict', fromlist=['']).verdicts({source!r}, globals())")})
    while (reply := await client.kc.get_shell_msg(timeout=VERDICTS_WITHIN_S))["parent_header"].get("msg_id") != asked:
        pass
    answer = reply["content"]["user_expressions"]["verdicts"]
    if answer["status"] != "ok":
        return [{"source": source[:90], "fault": f"could not be drawn again: {answer['ename']}: {answer['evalue']}"}]
    return json.loads(ast.literal_eval(answer["data"]["text/plain"]))


async def execute(path: Path, text: Path | None = None, beside: int = 1, after_cell: Callable = id) -> NotebookNode:
    """The notebook at `path` with what it prints now. Where its kernel dies, its metadata say so."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.executed = {"python": platform.python_version(), "text": str(text or ""), "beside": beside,
                                  "digest": digest(), "died": "", "cpu_s": 0.0, "s": 0.0}
    started, before = time.perf_counter(), {}

    def began(cell: NotebookNode, cell_index: int) -> None:
        before.update(cpu=cpu_s(kernel()), clock=time.perf_counter())

    async def ended(cell: NotebookNode, cell_index: int, execute_reply: dict) -> None:
        used_s, clock_s = cpu_s(kernel()), time.perf_counter()
        notebook.metadata.executed |= {"cpu_s": round(used_s, 1), "s": round(clock_s - started, 1)}
        cell.metadata.executed = {
            "cpu_s": round(used_s - before["cpu"], 2), "s": round(clock_s - before["clock"], 2),
            "headlines": await verdicts(client, cell.source)
            if execute_reply["content"]["status"] == "ok" and DRAWS.search(cell.source) else []}
        after_cell(cell)

    def kernel() -> psutil.Process:
        return psutil.Process(client.km.provisioner.process.pid)

    def interruptible(notebook: NotebookNode) -> None:
        """nbclient's handler of Ctrl-C stops the kernel that came last, and the others go on."""
        with contextlib.suppress(RuntimeError):
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)

    client = client_of(notebook, path.parent, on_cell_execute=began, on_cell_executed=ended,
                       on_notebook_start=interruptible)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    try:
        await client.async_execute(env=environment(**({"COURSE_TEXT": str(text.resolve())} if text else {})))
    except DeadKernelError as error:
        notebook.metadata.executed.died = str(error)
    return notebook


def failure(cell: NotebookNode) -> str:
    """The traceback of a cell that was to run through; empty where it did, or where it fails on purpose."""
    error = None if "raises-exception" in cell.metadata.get("tags", []) else error_of(cell.get("outputs", []))
    seconds = cell.metadata.get("executed", {}).get("s", 0)
    return "\n".join([*error.traceback, f"(after {seconds:.0f} of {CELL_TIMEOUT_S} s)"]) if error else ""


def summary(notebook: NotebookNode) -> str:
    """One line for people: cells, seconds, and what failed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    failed = [number for number, cell in enumerate(code) if failure(cell)]
    ran = notebook.metadata.executed
    return (f"{len(code)} cells, {ran['cpu_s']:.0f} CPU s, {ran['s']:.0f} s by the clock"
            + f"; FAILED: cells {failed}" * bool(failed) + f"; {ran['died']}" * bool(ran["died"]))


async def run(paths: Sequence[Path], text: Path | None, jobs: int) -> None:
    """Execute the notebooks, `jobs` at a time, and tell of each when it has ended."""
    EXECUTED.mkdir(parents=True, exist_ok=True)
    turn, width = asyncio.Semaphore(jobs), max(len(path.stem) for path in paths)
    bar = tqdm(total=sum('"cell_type": "code"' in line for path in paths for line in path.open(encoding="utf-8")),
               unit=" cells", disable=None)

    async def one(path: Path) -> None:
        target = EXECUTED / path.name
        target.unlink(missing_ok=True)
        async with turn:
            notebook = await execute(path, text, min(jobs, len(paths)), lambda cell: bar.update())
            nbformat.write(notebook, target)
            tqdm.write(f"{path.stem:{width}}  {summary(notebook)}")

    with bar:
        await asyncio.gather(*map(one, paths))


def last_text(path: Path) -> Path | None:
    """What the notebook was executed on the last time."""
    target = EXECUTED / path.name
    text = json.loads(target.read_text(encoding="utf-8"))["metadata"]["executed"]["text"] if target.exists() else ""
    return Path(text) if text else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.run_notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    parser.add_argument("--text", type=Path, default=os.environ.get("COURSE_TEXT"), metavar="FILE",
                        help="another text in the place of Python's help topics")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many notebooks side by side")
    parser.add_argument("--again", action="store_true", help="alone, each on the text that it ran on the last time")
    options = parser.parse_args()
    if options.again:
        for path in options.notebooks:
            asyncio.run(run([path], last_text(path), 1))
    else:
        asyncio.run(run(options.notebooks, options.text, options.jobs))


if __name__ == "__main__":
    main()

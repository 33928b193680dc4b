"""The course itself on this machine's GPUs: every kind of parallelism against one process, and every notebook.

On one GPU its ranks share it, over gloo. The losses that they are held against are those of one process on the CPU.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.groups.membership import SINGLE
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import backends, device, launch, record_timeline
from tools.gpu_day.operations import call_on_team
from tools.gpu_day.steps import ON, NotHere, Step, require

LAYOUTS = ("dp4", "dp4,zero1", "dp4,zero2", "dp4,zero3", "tp4", "pp4", "cp4", "dp2,tp2,zero1", "pp2,cp2", "dp4,ep4")
CONFIG = GPTConfig()
STEPS, BATCH, WORLD_SIZE = 4, 8, 4
LOSSES_OFF = 1e-4  # nats a token, after a few steps in float32 without TF32
NOTEBOOKS_WITHIN_S, AT_ONCE = 200.0, 5
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
NEEDED = ("nbformat", "nbclient", "nbval", "ipykernel", "ipywidgets", "anywidget")


def steps(mode: str) -> list[Step]:
    backend = "nccl" if backends.count_gpus() >= WORLD_SIZE else "gloo-cuda"  # four GPUs, otherwise one shared one
    layouts = [Step(f"{backend}, {text}", f"{STEPS} steps of HybridTrainer, losses against one process on the CPU",
                    partial(compare_losses, backend, text)) for text in LAYOUTS]
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    return [*layouts, *([Step("notebooks", "all cells that launch, ranks on the GPU",
                              partial(notebooks, mode, paths, NOTEBOOKS_WITHIN_S), NOTEBOOKS_WITHIN_S + 10)]
                        if mode == "gpu" else [])]


def make_model(num_experts: int) -> GPT:
    """The same on every device: a GPU's own random numbers are others."""
    from course_lib.expert_parallel import moe_gpt

    with torch.device("cpu"):
        torch.manual_seed(0)
        model = GPT(CONFIG)
    model = model.to(device())
    return moe_gpt(model, num_experts, group=SINGLE, tokens_group=SINGLE) if num_experts else model


def train_losses(text: str, num_experts: int = 0) -> tuple[list[float], int]:
    """On a rank: losses, and the bars of a last step in the timeline."""
    torch.set_float32_matmul_precision("highest")
    layout = ParallelLayout.from_string(text)
    trainer = HybridTrainer(CONFIG, layout, batch_size=BATCH, num_microbatches=2 if layout.pp > 1 else 1,
                            make_model=partial(make_model, num_experts))
    losses = list(trainer.train(STEPS, progress=False).losses)
    with record_timeline() as log:
        trainer.step()
    dist.barrier()
    return losses, len(log.events)


@cache
def of_one_process(num_experts: int) -> list[float]:
    return launch(train_losses, "dp1", num_experts, world_size=1, device="cpu")[0][0]


def compare_losses(backend: str, text: str) -> object:
    num_experts = 4 if "ep" in text else 0
    ranks = call_on_team(backend, WORLD_SIZE, train_losses, text, num_experts)
    off = max(abs(a - b) for losses, _ in ranks for a, b in zip(losses, of_one_process(num_experts), strict=True))
    bars = [count for _, count in ranks]
    return require(off <= LOSSES_OFF and min(bars) > 0, f"{off:.1e} nats off at most, {LOSSES_OFF:g} allowed; "
                   f"{min(bars)} to {max(bars)} bars of a step in the timeline", off=off, bars=bars)


def notebooks(mode: str, paths: Sequence[Path], within_s: float) -> object:
    """Each notebook in a process and a kernel of its own, a few at once; one that is not over in time says how far."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotHere(f"this Python has no {', '.join(missing)}")
    waiting, running, said = list(paths), dict[Path, subprocess.Popen](), dict[str, str]()
    until = time.monotonic() + within_s

    def end(path: Path) -> None:
        said[path.name[:2]] = running.pop(path).communicate()[0].strip()
        print(f"notebook {path.name[:2]}: {said[path.name[:2]][-3000:]}", file=sys.stderr, flush=True)

    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < AT_ONCE:
                path = waiting.pop(0)
                command = [sys.executable, "-u", "-m", "tools.gpu_day.course", ON[mode], str(path)]
                running[path] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for path in [path for path, process in running.items() if process.poll() is not None]:
                end(path)
            time.sleep(0.2)
    finally:  # also when the time for all steps is over
        for path, process in list(running.items()):
            process.kill()
            end(path)
    last = {name: (text.splitlines() or ["said nothing"])[-1] for name, text in sorted(said.items())}
    last |= {path.name[:2]: "not begun" for path in waiting}
    return require(all(text.startswith("all ") for text in last.values()),
                   "; ".join(f"{name} {text}" for name, text in last.items()), notebooks=said)


def try_notebook(mode: str, path: Path) -> None:
    """Print each cell as it ends, then what differs and what failed, and last how many cells came out."""
    from tools import cells

    ended = []

    def tell(cell: Any, cell_index: int, execute_reply: dict[str, Any]) -> None:
        ended.append(cell_index)
        print(f"cell {cell_index} of {path.name} {execute_reply['content']['status']}, {len(ended)} so far")

    outcomes = cells.lessons(mode, path, on_cell_executed=tell)
    bad = [each for each in outcomes if not each.passed]
    for each in outcomes:
        if not each.passed or each.other_output:
            print(f"{each.what}: {each.error or 'other text: ' + each.other_output}"[:400])
    print(f"all {len(outcomes)} cells" if not bad else f"{len(bad)} of {len(outcomes)} cells failed")


if __name__ == "__main__":
    mode, *paths = sys.argv[1:]
    if len(paths) == 1:
        try_notebook(mode, Path(paths[0]))
    else:
        print(notebooks("gpu", list(map(Path, paths[1:])), float(paths[0])).text)

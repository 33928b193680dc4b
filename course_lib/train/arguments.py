"""What can be asked for on the command line."""

import argparse
from pathlib import Path

from course_lib.command_line import Parser, above_zero, whole
from course_lib.hybrid_parallel import SCHEDULES, ParallelLayout
from course_lib.hybrid_parallel.trainer import PRECISIONS
from course_lib.train.experts import BALANCES

PROGRAM = "python -m course_lib.train"
DESCRIPTION = "Train the course's GPT under any layout, on this machine or, unchanged, on many under torchrun."
EXAMPLES = """examples
  8 ranks on this machine:        python -m course_lib.train --layout dp2,pp2,tp2 --micro-batches 4 --steps 50
  your text, in bf16:             python -m course_lib.train --layout dp4,zero3 --text book.txt --precision bf16
  no bubble:                      python -m course_lib.train --layout pp4 --schedule zb-v --micro-batches 8
  a mixture of experts:           python -m course_lib.train --layout dp4,ep2 --experts 8 --top-k 2 --balance bias
  measured, and drawn:            python -m course_lib.train --layout cp2,tp2 --metrics run.jsonl --plot run.png
  saved, and gone on with:        python -m course_lib.train --layout dp4 --save runs/a --save-every 20 --steps 100
                                  python -m course_lib.train --layout tp2 --save runs/a --resume runs/a --steps 200
  two hosts, 8 devices each, on each of them (the first one's name is HOST, and RANK 0 there, 1 on the other):
      torchrun --nnodes 2 --node-rank RANK --nproc-per-node 8 --master-addr HOST --master-port 29500 \\
          -m course_lib.train --layout dp4,pp2,tp2 --micro-batches 4 --steps 50
  started again when a rank dies: torchrun --max-restarts 10 --nproc-per-node 8 -m course_lib.train \\
                                      --layout dp8 --save runs/a --resume runs/a --steps 1000
  under Slurm:                    sbatch docs/cluster/train.sbatch

afterwards
  what is in a folder:            python -m course_lib.train inspect runs/a
  the loss on held-out text:      python -m course_lib.train evaluate runs/a --text book.txt
  text from the model:            python -m course_lib.train sample runs/a "def " --tokens 200
  for other programs:             python -m course_lib.train export runs/a model.safetensors
"""


def parser() -> Parser:
    """All options of the command."""
    arguments = Parser(PROGRAM, description=DESCRIPTION, epilog=EXAMPLES,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
    layout = arguments.add_argument_group("layout")
    layout.add_argument("--layout", default="dp1", metavar="dp2,pp2,tp2", help="ranks along dp, pp, cp, tp, ep; zero1 "
                        "to zero3 for what ranks of dp and cp shard (default: dp1)")
    layout.add_argument("--order", default=ParallelLayout.order, help="axes, innermost first (default: %(default)s)")
    layout.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="of the pipeline (default: 1f1b)")
    layout.add_argument("--micro-batches", type=whole(1), default=1, metavar="M",
                        help="into which each rank's rows are cut")
    layout.add_argument("--sequence-parallel", action="store_true", help="ranks of tp deal out tokens between matrices")
    layout.add_argument("--device", default="auto", choices=("auto", "cpu"))
    add_training(arguments)
    add_model(arguments)
    add_checkpoints(arguments)
    add_mine(arguments)
    out = arguments.add_argument_group("results")
    out.add_argument("--metrics", type=Path, metavar="FILE", help="a line of JSON for each step")
    out.add_argument("--plot", type=Path, metavar="FILE", help="a PNG of loss, bytes and memory")
    return arguments


def add_training(arguments: Parser) -> None:
    """Options of the run: steps, batch, learning rate, precision."""
    run = arguments.add_argument_group("training")
    run.add_argument("--steps", type=whole(1), default=50, metavar="N", help="in all, those before --resume too")
    run.add_argument("--batch-size", type=whole(1), default=16, metavar="B",
                     help="rows of all ranks together (default: 16)")
    run.add_argument("--text", type=Path, metavar="FILE", help="what to learn; default: Python's own help texts")
    run.add_argument("--learning-rate", type=above_zero, metavar="RATE",
                     help="at its highest (default: 0.001; of a run that goes on: its own)")
    run.add_argument("--warmup", type=whole(0), metavar="STEPS", help="until the rate is reached; then a cosine")
    run.add_argument("--decay-steps", type=whole(1), metavar="STEPS", help="where the cosine ends (default: --steps; "
                     "of a run that goes on: where it was to end at first)")
    run.add_argument("--max-norm", type=above_zero, default=1.0, help="of the gradient, clipped (default: 1)")
    run.add_argument("--precision", default="fp32", choices=PRECISIONS, help="of matrix products")
    run.add_argument("--compile", action="store_true", help="each stage through torch.compile")
    run.add_argument("--seed", type=whole(0), default=0)


def add_model(arguments: Parser) -> None:
    """Options of the model's sizes."""
    model = arguments.add_argument_group("model")
    for option, default in (("layers", 4), ("hidden-size", 64), ("heads", 4), ("sequence-length", 64)):
        model.add_argument(f"--{option}", type=whole(1), default=default, help=f"(default: {default})")
    model.add_argument("--experts", type=whole(1), metavar="E", help="in the place of each MLP, which ep deals out")
    model.add_argument("--top-k", type=whole(1), default=2, metavar="K", help="experts for each token (default: 2)")
    model.add_argument("--balance", default="auxiliary", choices=BALANCES,
                       help="what keeps experts equally busy: a loss, or a bias of the choice (default: auxiliary)")
    model.add_argument("--balance-weight", type=above_zero, metavar="W",
                       help="of that loss (default: 0.01), or by how much a bias moves in a step (default: 0.001)")


def add_checkpoints(arguments: Parser) -> None:
    """Options of saving and resuming."""
    keeping = arguments.add_argument_group("checkpoints")
    keeping.add_argument("--save", type=Path, metavar="DIR", help="where to, at the end too; a folder all hosts see, "
                         "with no checkpoints of another run in it")
    keeping.add_argument("--save-every", type=whole(1), default=50, metavar="N", help="steps (default: 50)")
    keeping.add_argument("--keep", type=whole(1), default=3, metavar="K", help="how many of the run stay (default: 3)")
    keeping.add_argument("--resume", type=Path, metavar="DIR", help="go on from the last intact checkpoint in it, or "
                         "from the checkpoint that it is, under any layout. With --save of the same folder: from the "
                         "beginning where there is none yet")
    keeping.add_argument("--strict", action="store_true", help="refuse to go on where the last checkpoint is damaged")
    keeping.add_argument("--overwrite", action="store_true", help="the checkpoints of another run in --save go, when "
                         "the first one of this run is complete")


def add_mine(arguments: Parser) -> None:
    """Options that put the reader's own functions into the run."""
    mine = arguments.add_argument_group("your own functions")
    mine.add_argument("--mine", type=Path, metavar="DIR", help="of exercises, workspace/exercises say: your answers, "
                      "each checked once, are called by a loop of their own, on the CPU in 64 bits; any layout but etp")
    mine.add_argument("--without", nargs="*", default=(), metavar="5.5", help="answers to leave out")

"""A word of the field has one registry: an entry that is added there is at all its users, under one spelling."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FACTS = "from dataclasses import replace\nfrom course_lib.facts import hardware, links, models\n"
RELOAD = "import importlib\nfrom course_lib import facts\nimportlib.reload(facts)\n"  # it was there before
# What is added, before anybody has read the registry; then, by user, what has to hold.
ADDED = {
    "a schedule": ("""
from course_lib.pipeline_parallel import schedules

@schedules.published("In Turns", "nobody", chunks=None, in_torch="ScheduleInTurns")
def take_turns_twice(p, m, v):
    return schedules.interleaved_1f1b(p, m, v)

schedules.take_turns_twice = take_turns_twice
""", {
        "the package": "pipeline_parallel.take_turns_twice(2, 4, 2).num_stages == 4",
        "the trainer": "generate_schedule('in-turns', 2, 4).num_stages == 4",
        "the command": "arguments.parser().parse_args(['--schedule', 'in_turns']).schedule == 'In Turns'",
        "the widget's chooser, with its chunks":
            "'In Turns, v = 3' in [each.label for each in widgets.PipelineSchedule.list_controls(SHOWN)[0].choices]",
        "the widget's comparison":
            "'In Turns' in [row[0] for row in pipeline_schedule.all_orders(2, 4, 2, None)]",
        "the pretended runs": "'In Turns' in inspect.getclosurevars(TRIALS['pipeline']).nonlocals['ways']",
        "the benchmark": "'In Turns' in benchmark.SCHEDULES",
    }, """
import importlib
import inspect
from benchmarks import pipeline_parallel as benchmark
from course_lib import pipeline_parallel, widgets
from course_lib.hybrid_parallel.parallelize import generate_schedule
from course_lib.train import arguments
from course_lib.widgets import pipeline_schedule
from tests.pretend.trials import data  # noqa: F401
from tests.pretend.trials.register import TRIALS
importlib.reload(pipeline_parallel)  # it was there before what is added
SHOWN = widgets.PipelineSchedule().settings()
"""),
    "a model": (FACTS + "models.MODELS += (replace(models.model('Llama 3 8B'), name='Fake 8B'),)", {
        "facts": "facts.model('Fake 8B').shape",
        "the planner's command": "command.model_of('fake-8b')[0] == 'Fake 8B'",
        "a widget that asks whether it fits": "'Fake 8B' in fits_or_not.MODELS",
        "the widget of ZeRO": "'Fake 8B' in zero_memory.MODELS",
        "the widget of activations": "'Fake 8B' in activation_memory.MODELS",
    }, RELOAD + "from course_lib.planner import command\n"
       "from course_lib.widgets import activation_memory, fits_or_not, zero_memory\n"),
    "a small model, built as GPT-2": (FACTS + "models.MODELS += (replace(models.model('GPT-2'), name='GPT-Fake'),)", {
        "the overlap of a step": "'GPT-Fake, 1.6B' in overlap.MODELS",
        "its widget": "'GPT-Fake, 1.6B' in str(BucketOverlap.list_controls(BucketOverlap().settings()))",
    }, RELOAD + "from course_lib.costs import overlap\nfrom course_lib.widgets import BucketOverlap\n"),
    "a device": (FACTS + "hardware.ACCELERATORS += (replace(hardware.accelerator('H100'), name='FakeGPU'),)", {
        "costs": "network_of('FakeGPU').group(64)",
        "the planner": "cluster('FakeGPU', 64).num_nodes == 8",
        "a widget": "'FakeGPU' in fits_or_not.DEVICES",
        "published rows": "require_row(published_rows()[0] | {'hw': 'FakeGPU'}) is None",
        "the widget of wires": "'FakeGPU' in which_wire.DEVICES",
        "the overlap of a step": "'FakeGPU, 8 in a node, NDR' in overlap.MACHINES",
    }, RELOAD + "from course_lib.costs.network import network_of\nfrom course_lib.planner import cluster\n"
       "from course_lib.facts import published_rows\nfrom course_lib.planner.rows import require_row\n"
       "from course_lib.costs import overlap\nfrom course_lib.widgets import fits_or_not, which_wire\n"),
    "a wire": (FACTS + "links.LINKS += (replace(links.interconnect('InfiniBand NDR'), name='InfiniBand Fake'),)", {
        "costs": "hardware_link('InfiniBand Fake')",
        "a cluster's network": "network_of('H100', between='InfiniBand Fake').group(64)",
        "the planner": "cluster('H100', 64, between='InfiniBand Fake')",
    }, RELOAD + "from course_lib.costs.links import hardware_link\nfrom course_lib.costs.network import network_of\n"
       "from course_lib.planner import cluster\n"),
}


@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_to_a_registry_is_at_all_its_users(kind):
    added, users, imports = ADDED[kind]
    asked = "\n".join([added, imports, *(f"print({name!r}, bool({holds}))" for name, holds in users.items())])
    ran = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines() == [f"{name} True" for name in users]

"""What chapter 9's trainer sends and holds is known before it runs: bytes exactly, memory within 1 %."""

import pytest

from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout
from course_lib.hybrid_parallel.forecast import held_bytes, sent_bytes
from course_lib.reference import GPTConfig
from course_lib.runtime import launch

CONFIG = GPTConfig(num_layers=4, hidden_size=128, num_heads=4, vocab_size=256, sequence_length=64)
BATCH = 16
CASES = {  # layout: micro-batches
    1: {"dp1": 1}, 2: {"dp2": 2, "tp2": 1, "pp2": 4, "cp2": 2, "dp2,zero1": 1},
    4: {"pp4": 4, "dp2,tp2": 1, "pp2,tp2": 4, "dp2,pp2": 2, "dp4,zero2": 1}}


def reported(cases):
    found = {}
    for text, m in cases.items():
        trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(text), batch_size=BATCH, num_microbatches=m)
        report = trainer.train(2, progress=False)
        found[text] = report.bytes_by_axis, report.memory_by_kind
    return found


@pytest.mark.parametrize("world_size", CASES)
def test_bytes_are_exact_and_memory_is_within_one_percent(world_size):
    cases = CASES[world_size]
    for text, (sent, held) in launch(reported, cases, world_size=world_size, timeout=120)[0].items():
        layout, m = ParallelLayout.from_string(text), cases[text]
        assert sent_bytes(CONFIG, layout, BATCH, m) == sent, text
        for kind, expected in held_bytes(CONFIG, layout, BATCH, m).items():
            assert held[kind] == pytest.approx(expected, rel=0.01), (text, kind)


def test_memory_of_stage_3_is_refused():
    with pytest.raises(ValueError, match="zero_stage=3: expected 0 to 2"):
        held_bytes(CONFIG, ParallelLayout(dp=2, zero_stage=3), BATCH)

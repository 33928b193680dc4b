"""python -m course_lib.planner: what it prints, what it refuses, and the flags of frameworks."""

import json
import re
from dataclasses import replace
from math import prod

import pytest

from course_lib.facts import model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.command import main, rows_of
from course_lib.planner.estimate import estimate, estimate_job
from course_lib.planner.frameworks import chunks_in_letters, megatron_flags, torchtitan_lines
from course_lib.planner.plan import plan
from course_lib.planner.search import pick_distinct
from tests.planner.test_huggingface import LLAMA_3_8B

ASKED = "--model llama-3-8b --gpus 8xH100 --tokens 1M"
SMALL = model("Llama 3 8B")

# Every name that the flags may have: NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py and the fields of
# TransformerConfig, ModelParallelConfig, TrainingConfig and CheckpointConfig, which become flags.
MEGATRON = set("""
tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size sequence-parallel
expert-model-parallel-size expert-tensor-parallel-size pipeline-model-parallel-layout
num-virtual-stages-per-pipeline-rank account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
use-distributed-optimizer overlap-grad-reduce overlap-param-gather grad-reduce-in-bf16 use-megatron-fsdp
data-parallel-sharding-strategy ckpt-format recompute-granularity recompute-method recompute-num-layers
recompute-modules micro-batch-size global-batch-size seq-length max-position-embeddings bf16 fp16 fp8-format fp8-recipe
fp4-format num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention num-query-groups
kv-channels swiglu untie-embeddings-and-output-weights disable-bias-linear mtp-num-layers multi-latent-attention
q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim num-experts moe-router-topk moe-ffn-hidden-size
normalization position-embedding-type window-size window-attn-skip-freq
moe-layer-freq moe-shared-expert-intermediate-size moe-token-dispatcher-type moe-grouped-gemm""".split())


def answer(capsys, *arguments):
    code = main([*ASKED.split(), *arguments])
    return code, capsys.readouterr().out


# What it prints

def test_a_table_with_reasons_and_the_error_beside_it(capsys):
    code, text = answer(capsys)
    lines = text.splitlines()
    assert code == 0 and lines[0].startswith("Llama 3 8B on 8 H100 in nodes of 8: 128 rows of 8,192 tokens, bf16")
    first = pick_distinct(plan(SMALL, cluster("H100", 8), 128))[0]
    assert re.match(rf"1=? +{first.layout} +{first.job.v} ", lines[2])
    assert sum(bool(re.match(r"\d=? +(dp|pp|cp|tp)", line)) for line in lines) == 5
    assert sum(bool(re.match(r"\d against 1: ", line)) for line in lines) == 4
    assert lines[-4].startswith("how far off: ") and all(" too " in line for line in lines[-3:]), "the nearest runs"


@pytest.mark.parametrize("model, gpus, tokens, more, code, told", [
    ("llama-3-70b", "64xH100", "2M", (), 0, r"(?s)^1= .*\n2= .*within 1 % of each other"),
    ("Llama 3 8B", "7 x h100", "1M", (), 0, r"\d of 7 devices, \d idle"),
    ("llama-3-405b", "8xH100", "1M", (), 1, "128 devices would do"),
    ("llama-3-8b", "8xH100", "1M", ("--why-not", "dp2,tp4"), 0, "^dp2,tp4: "),
    ("llama-3-8b", "8xH100", "1M", ("--why-not", "dp3,tp4", "--json"), 0, '"verdict": "cannot be built"')])
def test_ties_idle_devices_what_would_fit_and_why_not_are_told(capsys, model, gpus, tokens, more, code, told):
    assert main(["--model", model, "--gpus", gpus, "--tokens", tokens, *more]) == code
    assert re.search(told, capsys.readouterr().out, re.M)


@pytest.mark.parametrize("words, name, values", [
    (("--tp", "4"), "tp", {4}), (("--zero", "1"), "zero_stage", {0, 1})])
def test_an_axis_is_asked_for_and_told(capsys, words, name, values):
    plans = json.loads(answer(capsys, *words, "--json")[1])["plans"]
    assert plans and {each[name] for each in plans} <= values
    if name == "zero_stage":
        assert all(each[name] == 1 for each in plans if each["dp"] * each["cp"] > 1)


@pytest.mark.parametrize("gpus, tokens, more, told", [
    ("64xH100", "1000000", ("--top", "1"), "61 of 64 devices, 3 idle: .*; a batch of\\s+128 rows would use all"),
    ("8xH100", "1M", ("--tp", "8", "--recompute", "full"), "^1=? +tp8 .* full "),  # and not as few layers as fit
    ("8xH100", "1M", ("--pp", "2", "--schedule", "ZB-H1"), "^1=? .*pp2"),
    ("64xTPU v4", "1M", (), "(?s) unknown .*range unknown: a step of your own")])
def test_what_practitioners_ask_for_is_told(capsys, gpus, tokens, more, told):
    main(["--model", "llama-3-8b", "--gpus", gpus, "--tokens", tokens, *more])
    assert re.search(told, capsys.readouterr().out, re.M)


def test_a_step_of_ones_own_corrects_all_others_and_gradients_have_the_bits_that_are_asked_for(capsys):
    own = json.loads(answer(capsys, "--json", "--tp", "8", "--zero", "0", "--micro-batch", "1")[1])["plans"][0]
    layout, seconds = own["layout"], own["step_s"]
    plain, corrected = (json.loads(answer(capsys, "--json", "--micro-batch", "1", *more)[1])["plans"]
                        for more in ((), ("--measured", f"{layout}={2 * seconds}")))
    assert [each["layout"] for each in plain] == [each["layout"] for each in corrected]
    for one, two in zip(plain, corrected):
        assert two["step_s"] == pytest.approx(2 * one["step_s"]) and two["memory"] == one["memory"]
    held = {bits: json.loads(answer(capsys, "--json", "--tp", "8", "--gradients", bits)[1])["plans"][0]["memory"]
            for bits in ("bf16", "fp32")}
    assert held["fp32"]["gradients"] == pytest.approx(2 * held["bf16"]["gradients"])


def test_json_has_what_the_table_has(capsys):
    found = plan(SMALL, cluster("H100", 8), 128)
    code, text = answer(capsys, "--json", "--top", "3")
    told = json.loads(text)
    assert code == 0 and told["global_batch"] == 128 and told["device"] == "H100" and told["error"]
    for name, plans in (("plans", pick_distinct(found)[:3]), ("nearly", found.nearly[:3])):
        assert [each["layout"] for each in told[name]] == [str(each.layout) for each in plans]
    assert told["plans"][0]["step_s"] == found[0].step_s and told["plans"][0]["memory"] == found[0].memory


def test_tokens_are_counted_in_powers_of_two_and_become_rows():
    assert rows_of("2M", 8192) == 256 and rows_of("512k", 4096) == 128 and rows_of("16777216", 8192) == 2048
    for text in ("-1", "2X", "", "1000", "1.2.3M"):
        with pytest.raises(ValueError, match="--tokens"):
            rows_of(text, 8192)


# What it refuses

@pytest.mark.parametrize("asked, told", [
    ("--model GPT-17 --gpus 8xH100 --tokens 1M", "no model is called 'GPT-17'"),
    ("--model llama-3-8b --gpus 8xZ80 --tokens 1M", "Z80"),
    ("--model llama-3-8b --gpus H100 --tokens 1M", "such as 64xH100"),
    ("--model llama-3-8b --gpus 0xH100 --tokens 1M", "such as 64xH100"),
    ("--model llama-3-8b --gpus 8xH100 --tokens many", "--tokens 'many'"),
    ("--model no/config.json --gpus 8xH100 --tokens 1M", "expected a config.json"),
    (f"{ASKED} --tp 0", "expected a whole number of at least 1"), (f"{ASKED} --why-not xp3", "'xp3' in the layout"),
    (f"{ASKED} --measured dp8", "such as dp8,tp8=5.3"), (f"{ASKED} --measured tp3=5", "measured tp3: tp=3"),
    (f"{ASKED} --measured dp8=-1", "seconds of dp8"),
    (f"{ASKED} --software Word", "no software is called 'Word'"), (f"{ASKED} --json --megatron", "not allowed with"),
    ("--gpus 8xH100", "required")])
def test_a_mistake_is_one_line_and_ends_with_2(capsys, asked, told):
    with pytest.raises(SystemExit) as ended:
        main(asked.split())
    text = capsys.readouterr().err
    assert ended.value.code == 2 and told in text and text.count("\n") == 1


def test_a_config_of_hugging_face_is_a_model(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3_8B))
    asked = ["--model", str(path), *ASKED.split()[2:]]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"] == json.loads(answer(capsys, "--json")[1])["plans"]
    path.write_text(json.dumps(LLAMA_3_8B | {"model_type": "perceptron"}))
    with pytest.raises(SystemExit) as ended:
        main(asked)
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


# Frameworks

def names(flags):
    return {re.match(r"--([\w-]+)", flag)[1] for flag in flags}


def test_every_flag_is_one_that_megatron_has():
    flags = set()
    for each in plan(model("Llama 3 405B"), cluster("H100", 8192), 2048)[:200]:
        flags |= names(megatron_flags(each))
    assert flags <= MEGATRON


def test_megatron_is_told_of_the_layout_as_it_is():
    layout = ParallelLayout(dp=128, pp=16, tp=8, zero_stage=1)
    flags = megatron_flags(estimate(model("Llama 3 405B"), cluster("H100", 16_384), layout, 2048, v=8))
    assert {"--tensor-model-parallel-size 8", "--pipeline-model-parallel-size 16", "--num-layers 126",
            "--num-virtual-stages-per-pipeline-rank 8"} <= {*flags}
    assert {"account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "sequence-parallel",
            "use-distributed-optimizer"} <= names(flags), "126 layers and both ends are 128 chunks"
    assert "use-megatron-fsdp" not in names(flags) and "recompute-granularity" not in names(flags)


def test_megatron_counts_recomputed_layers_in_each_chunk_and_names_modules_that_are_made_again_alone():
    of = estimate(model("Llama 3 70B"), cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256, v=5,
                  recompute="full")
    assert "--recompute-method uniform" in megatron_flags(of)
    partly = megatron_flags(estimate_job(replace(of.job, recompute_layers=5)))
    assert {"--recompute-method block", "--recompute-num-layers 1"} <= {*partly}
    of = estimate(model("DeepSeek-V3"), cluster("H100", 2048), ParallelLayout(dp=2048, ep=64, zero_stage=1), 15360 * 2,
                  recompute_modules=("layernorm", "moe_act"), uneven=True)
    assert {"--recompute-modules layernorm moe_act", "--recompute-granularity selective"} <= {*megatron_flags(of)}
    shape = replace(SMALL.shape, num_layers=5, mtp_layers=1)  # layers of token prediction are dealt out in letters
    assert chunks_in_letters(shape, 4) == "Et|tt|tt|mL" and chunks_in_letters(shape, 3) == "Ett|tt|tmL"


def test_torchtitan_gets_degrees_that_multiply_to_the_devices_and_refuses_what_it_does_not_have(capsys):
    code, text = answer(capsys, "--torchtitan")
    degrees = dict(re.findall(r"config\.parallelism\.(\w+)_degree = (\d+)", text))
    assert code == 0 and "num_tokens_per_train_step = 1048576" in text
    assert prod(int(degrees[name]) for name in ("data_parallel_shard", "tensor_parallel", "pipeline_parallel",
                                                "context_parallel")) == 8
    with pytest.raises(ValueError, match="torchtitan has no others"):
        torchtitan_lines(estimate(SMALL, cluster("H100", 8), ParallelLayout(dp=8, zero_stage=1), 16))

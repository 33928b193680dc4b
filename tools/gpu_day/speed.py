"""What a step of a GPT costs on this card, in seconds and in bytes, beside what course_lib.costs says of it.

Every row is a rank of its own, so that its allocator is empty and nothing is compiled. Predicted are the bytes of
parameters, gradients and AdamW's state, those that the forward pass keeps, and the FLOPs whose share of the card's peak
is the MFU. The allocator, the driver and the device's own clock measure.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.costs.flops import activation_bytes, matmul_seconds, recomputed_flops, step_flops, utilisation
from course_lib.facts import Accelerator, reported_as
from course_lib.reference import GPT, GPTConfig
from course_lib.reference.gpt import causal_attention
from course_lib.runtime import backends, device, launch, seconds
from course_lib.sequence_parallel import recompute, ring_attention
from course_lib.why_distribute import shape_of
from tools.gpu_day.operations import end_teams
from tools.gpu_day.steps import Figure, Step, require

# 355 million parameters, and 124 million
MEDIUM = GPTConfig(num_layers=24, hidden_size=1024, num_heads=16, vocab_size=50_304, sequence_length=1024)
SMALL = replace(MEDIUM, num_layers=12, hidden_size=768, num_heads=12)
TINY = GPTConfig()
ROWS = 8  # of a batch
WIDTH = 8192  # of the products
PRODUCTS = (1, 8, 64, 256, 1024, 4096, 8192)  # rows
LENGTHS = (1024, 2048, 4096, 8192)  # tokens
COMPILES_WITHIN_S = 60.0
COMPILE_HERE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # a rank starts no processes for it
ATTENTION_STATE = {"written out": "none", "fused": "selective"}  # what activation_bytes calls them


def fused(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
    """PyTorch's fused kernel: FlashAttention in 16 bits."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout_p)


@dataclass(frozen=True)
class Way:
    """How a step is computed. `precision`: of the products; bf16 with 32-bit weights under autocast, or all in bf16."""

    precision: str = "bf16"  # fp32, tf32, autocast or bf16
    attention: str = "written out"
    policy: str = "none"  # of recomputation
    compiled: bool = False

    @property
    def name(self) -> str:
        parts = (self.precision, self.attention, self.policy != "none" and f"recompute {self.policy}",
                 self.compiled and "compiled")
        return ", ".join(filter(None, parts))

    @property
    def weight_bytes(self) -> int:
        return 2 if self.precision == "bf16" else 4

    @property
    def number_bytes(self) -> int:
        return 2 if self.precision in ("bf16", "autocast") else 4


WAYS = (Way("bf16", "fused"), Way("bf16", "written out"), Way("bf16", "written out", "selective"),
        Way("bf16", "written out", "full"), Way("bf16", "fused", "full"), Way("autocast", "fused"),
        Way("fp32", "written out"), Way("tf32", "written out"), Way("fp32", "written out", "full"))
COMPILED = (Way("bf16", "fused", compiled=True), Way("bf16", "written out", compiled=True))


def steps(mode: str) -> list[Step]:
    real = mode == "gpu"
    model, rows = (MEDIUM, ROWS) if real else (TINY, 2)
    ways = [way for way in WAYS if real or way.precision != "autocast"]  # which is not pretended
    found = [Step(f"step, {way.name}", f"GPT of {model.num_layers} layers, D={model.hidden_size}, {rows} rows",
                  partial(compare_step, model, rows, way)) for way in ways]
    found += [Step(f"step of 124M, {way.name}", f"GPT of 12 layers, D=768, {4 * rows} rows",
                   partial(compare_step, SMALL, 4 * rows, way)) for way in WAYS[:2] if real]
    found += [Step("products", f"(n, {WIDTH}) @ ({WIDTH}, {WIDTH}), bf16, and copies, against the roofline",
                   partial(roofline, WIDTH if real else 128)),
              Step("attention", "written out, fused and the ring's tiles on one rank, forward and backward",
                   partial(attention, LENGTHS if real else (128, 256)))]
    found += [Step("ring by fused blocks", "its 10 of 16 blocks, merged, against one fused call, forward", ring_blocks)
              for _ in range(real)]
    found += [Step(f"step, {way.name}", "each block through torch.compile",
                   partial(compare_step, model, rows, way), COMPILES_WITHIN_S) for way in COMPILED if real]
    return found


def clock(work: Callable[[], object], times: int = 5) -> float:
    """The median of a few calls after two untimed ones, in seconds."""
    for _ in range(2):
        work()
    return median(seconds(work) for _ in range(times))


def count_allocated() -> int:
    """Bytes that tensors hold now, by the allocator; 0 where the device keeps no count."""
    return torch.accelerator.memory_stats().get("allocated_bytes.all.current", 0) if has_allocator() else 0


def has_allocator() -> bool:
    return device().type == "cuda"  # a pretended GPU has none


def card() -> Accelerator | None:
    here = device()
    return None if not has_allocator() else reported_as(torch.get_device_module(here).get_device_name(here))


# A step

def compare_step(config: GPTConfig, rows: int, way: Way) -> Figure:
    end_teams()  # whose contexts lie on the card
    found = launch(time_step, config, rows, way, world_size=1, backend="nccl", threads=4, timeout=90,
                   env=COMPILE_HERE if way.compiled else None)[0]
    mfu = f"MFU {found['mfu']:.1%}" if found["mfu"] else "no data sheet"
    kept, peak, reserved, used = (found[f"{name}_bytes"] / 1e9 for name in ("kept", "peak", "reserved", "used"))
    of_kept = found["kept_bytes"] / found["kept_predicted"]
    of_state = found["state_bytes"] / found["state_predicted"]
    return Figure(
        f"{1e3 * found['step_s']:.1f} ms, {found['tokens_per_s']:,.0f} tokens/s, {mfu}; kept {kept:.2f} GB, "
        f"{of_kept:.3f} of the formula's; weights, gradients, AdamW {of_state:.4f}; peak {peak:.2f} GB, reserved "
        f"{reserved:.2f}, on the card {used:.2f}", found)


def time_step(config: GPTConfig, rows: int, way: Way) -> dict[str, float | None]:
    """On a rank: seconds, and what the allocator counts, of a step of AdamW."""
    torch.set_float32_matmul_precision("high" if way.precision == "tf32" else "highest")
    if way.compiled:
        backends.unset_default_device()  # a subclass of torch's context breaks the graph: see `graphs`
    model = GPT(config).to(device(), torch.bfloat16 if way.precision == "bf16" else torch.float32)
    for block in model.blocks:
        if way.attention == "fused":
            block.attention.attend = fused
        if way.policy != "none":
            block.forward = recompute(block.forward, way.policy)
        if way.compiled:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randint(config.vocab_size, (2, rows, config.sequence_length), device=device())
    forward_kept = list[int]()

    def step() -> None:
        before = count_allocated()
        with torch.autocast(device().type, torch.bfloat16, enabled=way.precision == "autocast"):
            loss = model(inputs, targets)[1]
        forward_kept.append(count_allocated() - before)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step_s = clock(step)
    for parameter in model.parameters():  # gradients as a step has them at its end
        parameter.grad = torch.zeros_like(parameter)
    shape, N, tokens = shape_of(config), model.num_parameters(), rows * config.sequence_length
    state = count_allocated()
    policy = way.policy if way.policy != "none" else ATTENTION_STATE[way.attention]
    flops = step_flops(shape, rows)
    extra = recomputed_flops(shape, rows, policy=way.policy) if way.policy != "none" else 0
    known = card()
    peak = known and known.peak_flops_per_s("bf16" if way.number_bytes == 2 else way.precision)
    stats = torch.accelerator.memory_stats() if has_allocator() else {}
    free, total = torch.cuda.mem_get_info() if has_allocator() else (0, 0)
    return {
        "parameters": N, "step_s": step_s, "tokens_per_s": tokens / step_s,
        "mfu": peak and utilisation(flops, step_s, 1, peak),
        "hfu": peak and utilisation(flops + extra, step_s, 1, peak),
        "kept_bytes": forward_kept[-1],
        "kept_predicted": activation_bytes(shape, rows, recompute=policy, bytes_per_number=way.number_bytes),
        "state_bytes": state, "state_predicted": 4 * way.weight_bytes * N,
        "peak_bytes": stats.get("allocated_bytes.all.peak", 0),
        "reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "used_bytes": total - free}


# Products, copies, attention

def roofline(width: int) -> Figure:
    found = launch(time_products, width, world_size=1, backend="nccl")[0]
    products = ", ".join(f"{n}: {found['tflops'][n]:.3g}" for n in found["tflops"])
    ratios = ", ".join(f"{found['predicted_s'][n] / found['seconds'][n]:.2f}" for n in found["predicted_s"])
    fp32, tf32, copy = found["fp32_tflops"], found["tf32_tflops"], found["copy_bytes_per_s"] / 1e9
    return Figure(f"TFLOP/s by rows {products}; fp32 {fp32:.0f}, TF32 {tf32:.0f}; copies {copy:,.0f} GB/s; predicted "
                  f"over measured seconds: {ratios}", found)


def time_products(width: int) -> dict[str, object]:
    """On a rank. The formula is asked with what this card reached: its largest product, and its copies."""
    w = torch.randn(width, width).to(device(), torch.bfloat16)
    times = {n: clock(partial(torch.mm, torch.randn(n, width).to(w), w), 9) for n in PRODUCTS if n <= width}
    tflops = {n: 2 * n * width**2 / took / 1e12 for n, took in times.items()}
    source = torch.empty(width**2 * 16, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = 2 * len(source) / clock(partial(target.copy_, source))
    predicted = {n: matmul_seconds(n, width, width, 1e12 * max(tflops.values()), copy) for n in times}
    full = {}
    for name, precision in (("fp32", "highest"), ("tf32", "high")):
        torch.set_float32_matmul_precision(precision)
        a = torch.randn(width, width)
        full[name] = 2 * width**3 / clock(partial(torch.mm, a, a)) / 1e12
    return {"seconds": times, "tflops": tflops, "predicted_s": predicted, "copy_bytes_per_s": copy,
            "fp32_tflops": full["fp32"], "tf32_tflops": full["tf32"]}


def attention(lengths: tuple[int, ...]) -> Figure:
    found = launch(time_attention, lengths, world_size=1, backend="nccl", timeout=60)[0]
    text = "; ".join(f"{name} " + ", ".join(f"T={T}: {1e3 * one['seconds']:.2f} ms {one['peak_bytes'] / 1e9:.2f} GB"
                                            for T, one in of_name.items()) for name, of_name in found.items())
    return Figure(text, found)


def forward_and_backward(attend: Callable, q: Tensor, k: Tensor, v: Tensor) -> None:
    attend(q, k, v).sum().backward()


def time_attention(lengths: tuple[int, ...]) -> dict[str, dict[int, dict[str, float]]]:
    """On a rank, bf16, one row of 16 heads of 64: forward and backward."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, attend in (("fused", fused), ("written out", causal_attention), ("the ring's tiles", ring_attention)):
        found[name] = {}
        for T in lengths:
            qkv = [torch.randn(1, 16, T, 64).to(device(), torch.bfloat16).requires_grad_() for _ in range(3)]
            before = count_allocated()
            if has_allocator():
                torch.accelerator.reset_peak_memory_stats()
            took = clock(partial(forward_and_backward, attend, *qkv), 3)
            peak = torch.accelerator.memory_stats()["allocated_bytes.all.peak"] - before if has_allocator() else 0
            found[name][T] = {"seconds": took, "peak_bytes": peak}
    return found


def ring_blocks() -> Figure:
    found = launch(time_blocks, LENGTHS[-1], world_size=1, backend="nccl")[0]
    return require(found["off"] < 0.02, f"one call {1e3 * found['whole_s']:.2f} ms, blocks "
                   f"{1e3 * found['blocks_s']:.2f} ms, off by {found['off']:.1e} at most", **found)


def time_blocks(T: int, R: int = 4) -> dict[str, float]:
    """On a rank: causal attention of T tokens at once, and as R ranks of a ring compute it, one block after the other.

    A block's outputs are averaged with weights exp(lse): lse is the logarithm of what each softmax was divided by.
    """
    q, k, v = (torch.randn(1, 16, T, 64).to(device(), torch.bfloat16) for _ in range(3))

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        on = "" if device().type == "cuda" else "_for_cpu"
        return getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention{on}")(q, k, v, 0.0, causal)[:2]

    def blocks() -> Tensor:
        merged = []
        for i, rows in enumerate(q.chunk(R, 2)):
            parts = [attend(rows, key, value, i == j)
                     for j, (key, value) in enumerate(zip(k.chunk(R, 2)[:i + 1], v.chunk(R, 2)))]
            weights = torch.stack([lse for _, lse in parts]).softmax(0)  # (blocks, 1, heads, T/R)
            merged.append(sum(out * weight[..., None] for (out, _), weight in zip(parts, weights)))
        return torch.cat(merged, 2)

    whole = attend(q, k, v, True)[0]
    return {"whole_s": clock(partial(attend, q, k, v, True)), "blocks_s": clock(blocks),
            "off": (blocks() - whole).abs().max().item()}

#!/usr/bin/env python3
"""bench_pytorch_step.py -- what a training step of the same GPT-2 costs in PyTorch, eager and compiled.

  what   The model of check_against_pytorch.py with PyTorch's fused attention, BF16 autocast over FP32 master weights,
         gradient clipping and fused AdamW: the work of `./train_gpt --recipe bf16`, as PyTorch does it best. The batch
         comes from the host and the loss goes back to it in every step, as in train_gpt.
  units  ms: the median of the steps after the warm-up, each waited for; tokens/s: batch x context / that
  prints a Markdown table, a line per model and way to run it; what does not run says why. Exit status 1 if an eager step
         does not run (for another reason than the machine's memory), else 0.
  needs  PyTorch and NumPy, which nothing else of this project does; torch.compile also a C++ compiler or Triton
  run    python3 scripts/bench_pytorch_step.py [--device cpu] [--layers 6 --heads 6 --channels 384 ...]
"""
import argparse
import statistics
import sys
import time

import torch
from torch.nn import functional as F

from check_against_pytorch import GPT, Attention

MODELS = {  # bench.cu's, and GPT-2's smallest with its vocabulary rounded up to a multiple of 64
    "small": {"layers": 6, "heads": 6, "channels": 384, "context": 256, "batch": 4, "vocab": 256},
    "gpt2": {"layers": 12, "heads": 12, "channels": 768, "context": 1024, "batch": 8, "vocab": 50304},
}


def fused_attention(self, x):
    B, T, C = x.shape
    q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
    return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))


def forward(self, x, y):
    hidden = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
    for block in self.h:
        hidden = block(hidden)
    logits = self.ln_f(hidden) @ self.wte.weight.T
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def step_times(c, device, compiled, warmup, steps):
    """Seconds of each step after the warm-up, the number of parameters, and the last loss."""
    torch.manual_seed(1)
    model = GPT(c, c["vocab"]).to(device)
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    run = torch.compile(model) if compiled else model
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(c["vocab"], (64, c["context"] + 1))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(warmup + steps):
        wait()
        start = time.perf_counter()
        rows = text[torch.randint(len(text), (c["batch"],))].to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = run(rows[:, :-1], rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        wait()
        times.append(time.perf_counter() - start)
    return times[warmup:], sum(p.numel() for p in model.parameters()), value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=[*MODELS, "both"], help="sizes to start from (both; small on a CPU)")
    parser.add_argument("--modes", default="eager,compiled", help="eager, compiled or both with a comma (both)")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", action="store_true", help="the table's rows without its head, to go under other rows")
    for name in MODELS["small"]:
        parser.add_argument(f"--{name}", type=int, help="as train_gpt's; of one model only")
    args = parser.parse_args()
    modes = args.modes.split(",")
    if not set(modes) <= {"eager", "compiled"} or args.steps < 1:
        parser.error("expected --modes eager, compiled or eager,compiled, and --steps of at least 1")
    own = {name: getattr(args, name) for name in MODELS["small"] if getattr(args, name) is not None}
    everything = args.model == "both" or (not args.model and not own and args.device == "cuda")
    names = [*MODELS] if everything else [args.model or "small"]

    Attention.forward, GPT.forward = fused_attention, forward
    if not args.rows:
        print("| model | program | ms per step | tokens/s |")
        print("|:--|:--|--:|--:|")
    status = 0
    for name in names:
        c = {**MODELS[name], **own}
        model = "L{layers} H{heads} C{channels} T{context} B{batch} V{vocab}".format(**c)
        for mode in modes:
            program = f"PyTorch {torch.__version__} {mode}, bf16"
            try:
                times, parameters, loss = step_times(c, args.device, mode == "compiled", args.warmup, args.steps)
                ms = 1e3 * statistics.median(times)
                print(f"| {model} | {program} | {ms:.2f} | {1e3 * c['batch'] * c['context'] / ms:.0f} |", flush=True)
                print(f"{model}, {program}: {parameters} parameters, last loss {loss:.4f}", file=sys.stderr)
            except Exception as error:  # noqa: BLE001 -- torch.compile fails in many ways
                memory = isinstance(error, torch.cuda.OutOfMemoryError)
                reason = "out of memory" if memory else (str(error).strip().splitlines() or [type(error).__name__])[0]
                print(f"| {model} | {program} | skipped: {reason.replace('|', '/')[:160]} | |", flush=True)
                status |= mode == "eager" and not memory
            if args.device == "cuda":
                torch.cuda.empty_cache()
    sys.exit(status)


if __name__ == "__main__":
    main()

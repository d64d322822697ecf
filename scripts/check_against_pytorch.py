#!/usr/bin/env python3
"""check_against_pytorch.py -- the same training twice: ./train_gpt --recipe fp32, and GPT-2 in PyTorch.

  what   Both start from the same weights, read the same batches and take the same AdamW steps; every training loss must
         agree to 1e-5 of itself. Prints one line per step, then the largest difference; exit status 1 if it is larger,
         2 if train_gpt could not be run.
  why    The tests compare the kernels with loops of our own (tests/reference_model.h). This compares the whole trainer
         with an implementation that is not ours: model, gradients, clipping, optimizer, schedule. The first weights and
         the batches are computed here anew, so that rng.h and the order of the data are checked too.
  needs  PyTorch and NumPy, which nothing else of this project does:   pip install torch numpy
  run    python3 scripts/check_against_pytorch.py [--double] [--data FILE] [--steps 10] [--layers 2] ...
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

TOLERANCE = 1e-5  # relative; one FP32 rounding is 6e-8
WEIGHTS, BATCHES, TEST = 1, 2, 6  # rng.h, enum Stream
SETTINGS = {  # the options of train_gpt, all of which can be set
    "steps": 10, "layers": 2, "heads": 2, "channels": 32, "context": 16, "batch": 2, "accumulate": 2,
    "lr": 3e-3, "min-lr": 3e-4, "warmup": 3, "beta1": 0.9, "beta2": 0.95, "weight-decay": 0.1, "clip": 2.2, "seed": 1,
}  # fmt: skip


# ==== rng.h again ====================================================================================================


def philox(seed, stream, n):
    """Philox4x32-10 with key (seed, stream): the four 32-bit words of each counter in n, in uint64 arithmetic."""
    n, low, half = np.atleast_1d(np.asarray(n, np.uint64)), np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = n & low, n >> half, n * np.uint64(0), n * np.uint64(0)
    k0, k1 = stream, seed
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def normal(seed, stream, n):
    """Box-Muller in float64, rounded once to float32."""
    w0, w1, _, _ = philox(seed, stream, n)
    u, v = (w0.astype(np.float64) + 1) * 2.0**-32, w1.astype(np.float64) * 2.0**-32
    return (np.sqrt(-2 * np.log(u)) * np.cos(6.283185307179586 * v)).astype(np.float32)


def below(seed, stream, n, bound):
    """Uniform over 0 .. bound-1."""
    w0, w1, _, _ = philox(seed, stream, n)
    return ((int(w1[0]) << 32 | int(w0[0])) * bound) >> 64


# ==== GPT-2 ==========================================================================================================


class Attention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(channels, 3 * channels)
        self.c_proj = nn.Linear(channels, channels)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(C // self.heads)  # (B, heads, T, T)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
        return self.c_proj((scores.softmax(3) @ v).transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c_fc = nn.Linear(channels, 4 * channels)
        self.c_proj = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(channels), Attention(channels, heads)
        self.ln_2, self.mlp = nn.LayerNorm(channels), MLP(channels)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c, vocab=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, c["channels"]), nn.Embedding(c["context"], c["channels"])
        self.h = nn.ModuleList(Block(c["channels"], c["heads"]) for _ in range(c["layers"]))
        self.ln_f = nn.LayerNorm(c["channels"])

    def forward(self, x, y):
        hidden = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            hidden = block(hidden)
        logits = self.ln_f(hidden) @ self.wte.weight.T
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@torch.no_grad()
def init(model, layers, seed):
    """Element e of parameter i is normal number (i << 40 | e) of the stream, times a float32 standard deviation."""
    for i, (name, p) in enumerate(model.named_parameters()):
        if p.dim() == 2:
            std = np.float32(0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02)
            number = np.uint64(i << 40) | np.arange(p.numel(), dtype=np.uint64)
            p.copy_(torch.from_numpy(std * normal(seed, WEIGHTS, number)).view_as(p))
        else:
            p.fill_(name.endswith(".weight"))  # layernorm weights 1, biases 0


# ==== the two trainings ==============================================================================================


def learning_rate(c, t):
    """Of step t = 0, 1, ...: a straight rise, then half a cosine."""
    if t < c["warmup"]:
        return c["lr"] * (t + 1) / c["warmup"]
    cosine = 0.5 * (1 + math.cos(math.pi * (t - c["warmup"]) / (c["steps"] - c["warmup"])))
    return c["min-lr"] + cosine * (c["lr"] - c["min-lr"])


def pytorch_losses(c, data, dtype):
    tokens = torch.tensor(list(data[: len(data) * 9 // 10]))  # the first nine tenths; the rest is for validation
    B, T = c["batch"], c["context"]
    model = GPT(c)
    init(model, c["layers"], c["seed"])
    model.to(dtype)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": c["weight-decay"]},
        {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(c["beta1"], c["beta2"]), eps=1e-8)
    losses = []
    for step in range(c["steps"]):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(c["accumulate"]):
            rows = [(step * c["accumulate"] + micro) * B + r for r in range(B)]
            offsets = [below(c["seed"], BATCHES, n, len(tokens) - T) for n in rows]
            x = torch.stack([tokens[o : o + T] for o in offsets])
            y = torch.stack([tokens[o + 1 : o + T + 1] for o in offsets])
            loss = model(x, y) / c["accumulate"]
            loss.backward()
            total += loss.item()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        if c["clip"] and norm > c["clip"]:
            for p in model.parameters():
                p.grad *= c["clip"] / norm
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(c, step)
        optimizer.step()
        losses.append(total)
    return losses


def fewbits_losses(c, train_gpt, file, out):
    options = [word for name, value in c.items() for word in (f"--{name}", str(value))]
    command = [train_gpt, "--recipe", "fp32", "--data", file, "--out", out, *options]
    command += ["--eval-every", "0", "--loss-scale", "none"]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        log = [json.loads(line) for line in (pathlib.Path(out) / "log.jsonl").read_text().splitlines()]
        losses = {entry["step"]: entry["loss"] for entry in log if "loss" in entry}
        return [losses[step] for step in range(1, c["steps"] + 1)]
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        print(f"no {c['steps']} losses from {train_gpt}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def some_text():
    """The same 5000 words every time."""
    words = "the cat and a dog ran to see one small red bird sing".split()
    return " ".join(words[below(1, TEST, n, len(words))] for n in range(5000)).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", default="./train_gpt", help="the program to check (./train_gpt)")
    parser.add_argument("--data", help="any file, read as bytes (made-up text)")
    parser.add_argument("--double", action="store_true", help="PyTorch in float64, to see whose rounding it is")
    for name, value in SETTINGS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"as train_gpt's ({value})")
    args = vars(parser.parse_args())
    c = {name: args[name.replace("-", "_")] for name in SETTINGS}

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(args["data"] or pathlib.Path(folder) / "text.txt")
        if not args["data"]:
            file.write_bytes(some_text())
        ours = fewbits_losses(c, args["train_gpt"], str(file), str(pathlib.Path(folder) / "out"))
        theirs = pytorch_losses(c, file.read_bytes(), torch.float64 if args["double"] else torch.float32)

    print("step      fewbits      PyTorch   relative difference")
    differences = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    for step, (a, b, d) in enumerate(zip(ours, theirs, differences), start=1):
        print(f"{step:4d} {a:12.8f} {b:12.8f}   {d:.1e}")
    worst = max(d if math.isfinite(d) else math.inf for d in differences)
    verdict = "ok" if worst <= TOLERANCE else "TOO LARGE"
    print(f"largest relative difference {worst:.1e}, allowed {TOLERANCE:.0e}: {verdict}")
    sys.exit(verdict != "ok")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""check_transformers.py -- weights.h against Hugging Face's transformers: the same weights must be the same model, both ways.

  what   A GPT-2 with random weights, biases and gains, made by transformers: ./train_gpt --from evaluates it, exports it (as a folder,
         and as llm.c's file, which is read here by NumPy alone), continues a text greedily, fine-tunes it. A model that ./train_gpt
         trained: transformers loads it, and its tokenizer. One line per check, with what was found and what is allowed; status 1 at
         a failure, 2 if train_gpt could not be run. --full: once more with GPT-2 124M's shape, with time and memory.
  why    The tests make their files themselves. A mistake in what we think that Hugging Face's files hold would be in both.
  bound  Losses: what is printed has 6 digits after the point, which is 5e-7. On the way to a logit each number is rounded about 12 times
         in a layer and 4 times outside, by u = 2^-24 of itself; a loss is a difference of logits. That a sum of many terms rounds more
         often averages out, over its terms and over the tokens. Everything else has to be equal bit for bit.
  needs  pip install torch transformers safetensors numpy, which nothing else of this project does; last run with torch 2.15, transformers 5.24
  run    python3 scripts/check_transformers.py [--full] [--train-gpt ./train_gpt] [--seed 1]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = {"n_layer": 3, "n_head": 4, "n_embd": 48, "n_positions": 128, "vocab_size": 101}
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
PRINTED = 5e-7
failures = 0


def report(what, found, allowed, note=""):
    global failures
    good = found <= allowed
    failures += not good
    print(f"{what:66s} {found:9.2g}  allowed {allowed:8.2g}  {'ok' if good else 'FAILS'}{'  ' + note if note else ''}", flush=True)


def equal(what, ours, theirs, note=""):
    report(what, int(ours != theirs), 0, note if ours == theirs else f"{ours!r:.200} here, {theirs!r:.200} there")


# ==== one side ========================================================================================================


def train_gpt(options, *args):
    """What it prints on stdout; with --full its peak memory in bytes is left in options.peak."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen([options.train_gpt, *map(str, args)], stdout=out, stderr=err)
        except OSError as error:
            sys.exit(print(f"cannot run {options.train_gpt}: {error}", file=sys.stderr) or 2)
        while options.full and child.poll() is None:  # what wait4 tells would include this process, from which it was forked
            if peak := re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{child.pid}/status").read_text()):
                options.peak = int(peak[1]) * 1024
            time.sleep(0.005)
        status = child.wait()
        said, told = (stream.seek(0) or stream.read().decode() for stream in (out, err))
        if status:
            sys.exit(print(f"{' '.join(map(str, args))}: status {status}: {told}", file=sys.stderr) or 2)
        return said


def evaluated(options, model, file, *more):
    """The loss, and over how many tokens."""
    said = train_gpt(options, "--from", model, "--evaluate", file, "--recipe", "fp32", *more)
    return float(re.search(r"loss (\S+) nats", said)[1]), int(re.search(r"; (\d+) tokens", said)[1])


def write_shard(path, tokens):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + np.asarray(tokens, "<u2").tobytes())
    return path


# ==== the other =======================================================================================================


def scrambled(shape, seed):
    """No tensor is left as it was initialised: a bias that is not read, or a gain, would show."""
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=None, eos_token_id=None)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.1 if p.dim() == 1 else (2 if "wte" in name else 8) / p.shape[1] ** 0.5 if "wte" in name or "wpe" in name else 1.2 / p.shape[0] ** 0.5
            p.copy_(torch.randn_like(p) * scale + (p.dim() == 1 and name.endswith("weight")))
    return model


@torch.no_grad()
def token_losses(model, tokens, context, dtype=torch.float64):
    """Of every token but the first: windows of `context`, and a shorter one for the rest."""
    model, losses, tokens = model.to(dtype), [], torch.tensor(tokens)
    for at in range(0, len(tokens) - 1, context):
        x, y = tokens[at : at + context][: len(tokens) - 1 - at], tokens[at + 1 : at + 1 + context]
        losses.append(torch.nn.functional.cross_entropy(model(x[None]).logits[0], y, reduction="none"))
    return torch.cat(losses).double()


def allowed(shape, loss):
    return PRINTED + 2**-24 * (12 * shape["n_layer"] + 4) * loss


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(x.dtype == b[n].dtype and torch.equal(x.view(torch.int32), b[n].view(torch.int32)) for n, x in a.items())


def llmc(path):
    """Its shape as transformers names it, and its tensors as transformers has them: llmc/train_gpt2.py, read_tensor and write_model, once more."""
    raw = path.read_bytes()
    magic, version, T, V, L, H, C, Vp, *rest = np.frombuffer(raw, "<i4", 256)
    assert magic == 20240326 and version in (3, 5) and Vp % 128 == 0 and 0 <= Vp - V < 128 and not any(rest), raw[:32]
    numbers, at, tensors = np.frombuffer(raw, "<f4" if version == 3 else "<i2", offset=1024), 0, {}
    per_layer = [("ln_1.weight", C), ("ln_1.bias", C), ("attn.c_attn.weight", 3 * C, C), ("attn.c_attn.bias", 3 * C), ("attn.c_proj.weight", C, C), ("attn.c_proj.bias", C)]
    per_layer += [("ln_2.weight", C), ("ln_2.bias", C), ("mlp.c_fc.weight", 4 * C, C), ("mlp.c_fc.bias", 4 * C), ("mlp.c_proj.weight", C, 4 * C), ("mlp.c_proj.bias", C)]
    for name, *dims in [("wte.weight", Vp, C), ("wpe.weight", T, C), *per_layer, ("ln_f.weight", C), ("ln_f.bias", C)]:
        for layer in range(L) if (name, *dims) in per_layer else [None]:
            size = int(np.prod(dims))
            x = torch.from_numpy(numbers[at : at + size].copy().reshape(dims))
            at += size
            key = name if layer is None else f"h.{layer}.{name}"
            if name == "wte.weight":
                assert not x[V:].any(), "rows that pad wte are not 0"
                x = x[:V]
            tensors[key] = x.T if layer is not None and len(dims) == 2 else x  # its Linears are (out, in)
    assert at == len(numbers), f"{len(numbers) - at} numbers too many"
    return {"n_layer": L, "n_head": H, "n_embd": C, "n_positions": T, "vocab_size": V}, tensors


# ==== the checks ======================================================================================================


def check_theirs(options, folder, shape):
    model, rng, theirs = scrambled(shape, options.seed), np.random.default_rng(options.seed), folder / "theirs"
    model.save_pretrained(theirs)
    tokens = rng.integers(0, shape["vocab_size"], 1 + 7 * shape["n_positions"] + 13).tolist()
    shard, V = write_shard(folder / "tokens.bin", tokens), shape["vocab_size"]

    losses = token_losses(model, tokens, shape["n_positions"])
    single = token_losses(model, tokens, shape["n_positions"], torch.float32).mean().item()
    loss, count = evaluated(options, theirs, shard)
    truth = losses.mean().item()
    report("loss of a model of transformers', against float64", abs(loss - truth), allowed(shape, truth), f"{loss:.6f}; float32 there: {abs(single - truth):.1g} away")
    equal("tokens evaluated", count, len(tokens) - 1)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = scrambled(shape, options.seed).to(dtype)
        narrow.save_pretrained(folder / "narrow")
        loss16, truth16 = evaluated(options, folder / "narrow", shard)[0], token_losses(narrow, tokens, shape["n_positions"]).mean().item()
        report(f"  saved as {dtype}", abs(loss16 - truth16), allowed(shape, truth16), f"moved by {abs(truth16 - truth):.1g}")

    # -log p of single tokens, which is their logit but for what all have in common: after one token, and after the first n of the file.
    worst = 0
    for a, b in rng.integers(0, V, (24, 2)).tolist():
        worst = max(worst, abs(evaluated(options, theirs, write_shard(folder / "two.bin", [a, b]))[0] - token_losses(model, [a, b], 1).item()))
    report("-log p(token | token), 24 pairs", worst, allowed(shape, losses.max().item()))
    worst = 0
    for n in rng.integers(2, shape["n_positions"], 12).tolist():
        sums = [evaluated(options, theirs, write_shard(folder / "n.bin", tokens[: k + 1]))[0] * k for k in (n - 1, n)]
        worst = max(worst, abs(sums[1] - sums[0] - losses[n - 1].item()) / (2 * n - 1))
    report("-log p(token | n tokens), 12 places, per printed loss", worst, allowed(shape, losses.max().item()))

    said = train_gpt(options, "--from", theirs, "--export", folder / "again")
    again = transformers.GPT2LMHeadModel.from_pretrained(folder / "again")
    equal("exported again as a folder: weights, bit for bit", same_weights(model.float(), again), True, said.strip().rsplit("/", 1)[-1])
    with torch.no_grad():
        x = torch.tensor([tokens[: shape["n_positions"]]])
        report("  largest difference of a logit", (model(x).logits - again(x).logits).abs().max().item(), 0)

    weights = {n.removeprefix("transformer."): x for n, x in model.state_dict().items() if not n.startswith("lm_head")}
    for recipe, dtype, bits in ("fp32", torch.float32, torch.int32), ("bf16", torch.bfloat16, torch.int16):
        file = folder / f"{recipe}.bin"
        train_gpt(options, "--from", theirs, "--export", file, "--recipe", recipe)
        got_shape, got = llmc(file)
        wrong = sum((weights[n].to(dtype).contiguous().view(bits) != x.contiguous().view(bits)).sum().item() for n, x in got.items())
        report(f"llm.c's file in {recipe}: numbers that differ", wrong, 0, f"of {sum(x.numel() for x in got.values())}, {file.stat().st_size} bytes")
        equal("  shape and names", (got_shape, got.keys()), (shape, weights.keys()))
        from_llmc = evaluated(options, file, shard)[0]
        if recipe == "fp32":
            report("  loss of that file, against the folder's", abs(from_llmc - loss), 0)
        else:
            rounded = scrambled(shape, options.seed).bfloat16()
            truth16 = token_losses(rounded, tokens, shape["n_positions"]).mean().item()
            report("  loss of that file, against torch's rounding to BF16", abs(from_llmc - truth16), allowed(shape, truth16))
    return theirs, model


def check_greedy(options, what, folder, model, text, ours):
    """Tokens that were each the most likely: where two tie, within what the losses may be apart, either may be."""
    n = len(text)
    with torch.no_grad():
        theirs = model.float().generate(torch.tensor([text]), attention_mask=torch.ones(1, n, dtype=torch.int64), max_new_tokens=len(ours), do_sample=False, eos_token_id=None, pad_token_id=0)[0, n:].tolist()
        top = model.double()(torch.tensor([text + ours])).logits[0, n - 1 : -1].topk(2)
    gaps = top.values[:, 0] - top.values[:, 1]
    clear = int((gaps < 1e-4).nonzero()[0]) if (gaps < 1e-4).any() else len(ours)
    wrong = sum(a != b for a, b in zip(ours[:clear], theirs[:clear]))
    report(what, wrong, 0, f"of {clear}, {len(set(ours))} kinds; the closest second is {gaps[:clear].min():.2g} behind")
    report("  tokens before two logits tie within 1e-4, short of 100", max(0, 100 - clear), 0)


def check_sampling(options, folder, theirs, model):
    said = train_gpt(options, "--from", theirs, "--temperature", 0, "--tokens", 120, "--recipe", "fp32")
    check_greedy(options, "greedy tokens that differ from generate's", folder, model, [0], list(map(int, said.split())))


def check_fine_tuning(options, folder, theirs, shape):
    rng = np.random.default_rng(options.seed + 1)
    write_shard(folder / "few.bin", rng.integers(0, shape["vocab_size"], 4000) // 4)
    train_gpt(options, "--from", theirs, "--data", folder / "few.bin", "--steps", 5, "--lr", 1e-3, "--warmup", 0, "--batch", 4, "--eval-every", 5, "--eval-batches", 4,
              "--tokens", 0, "--save-every", 5, "--recipe", "fp32", "--out", folder / "tuned")  # fmt: skip
    log = [json.loads(line) for line in (folder / "tuned" / "log.jsonl").read_text().splitlines()]
    before, after = [line["val_loss"] for line in log if "val_loss" in line]
    report("fine-tuned for 5 steps: loss after, over loss before", after / before, 0.95, f"{before:.4f} -> {after:.4f}")
    tuned, tokens = transformers.GPT2LMHeadModel.from_pretrained(folder / "tuned" / "step_5"), rng.integers(0, 25, 300).tolist()
    ours, truth = evaluated(options, folder / "tuned", write_shard(folder / "x.bin", tokens))[0], token_losses(tuned, tokens, shape["n_positions"]).mean().item()
    report("  its checkpoint in transformers, against float64", abs(ours - truth), allowed(shape, truth))


def check_ours(options, folder):
    words = "the cat and a dog ran to see one small red bird sing".split()
    rng, text, tokenizer = np.random.default_rng(options.seed), folder / "text", folder / "tokenizer.json"
    text.write_text(" ".join(rng.choice(words, 6000)) + "\n")
    tokenizer.write_text((ROOT / "tests" / "tiny_tokenizer.h").read_text().split('R"json(')[1].split(')json"')[0])
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 128}
    few = ["--layers", 2, "--heads", 2, "--channels", 32, "--context", 128, "--batch", 4, "--steps", 150, "--warmup", 10, "--save-every", 150, "--eval-every", 0, "--tokens", 0, "--recipe", "fp32"]
    for out, more in ("as bytes", []), ("by a tokenizer", ["--tokenizer", tokenizer]):
        train_gpt(options, "--data", text, "--out", folder / out, *few, *more)
        at = folder / out / "step_150"
        model = transformers.GPT2LMHeadModel.from_pretrained(at).eval()
        if more:
            auto, raw = transformers.AutoTokenizer.from_pretrained(at), transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
            ids, encode = auto.encode(text.read_text()), lambda s: auto.encode(s)
            equal("AutoTokenizer of a checkpoint: ids, as of its tokenizer.json", ids, raw.encode(text.read_text()), f"{len(ids)} ids, {type(auto).__name__}")
        else:
            ids, encode = list(text.read_bytes()), lambda s: list(s.encode())
        ours, count = evaluated(options, folder / out, text)
        truth = token_losses(model, ids, 128).mean().item()
        report(f"loss of a model trained here on text {out}", abs(ours - truth), allowed(shape, truth), f"{ours:.6f}")
        equal("  tokens evaluated", count, len(ids) - 1)
        prompt = "the cat and a"
        said = train_gpt(options, "--from", folder / out, "--sample", prompt, "--temperature", 0, "--tokens", 110, "--recipe", "fp32")
        assert said.startswith(prompt) and said.endswith("\n"), said
        if more:  # text, where several ways of writing the same are possible: compared as text
            with torch.no_grad():
                x = torch.tensor([encode(prompt)])
                new = model.float().generate(x, attention_mask=torch.ones_like(x), max_new_tokens=110, do_sample=False, eos_token_id=None, pad_token_id=0)
            equal("greedy text that differs from generate's", said[:-1], auto.decode(new[0]), f"{new.shape[1] - x.shape[1]} tokens")
        else:
            check_greedy(options, "greedy bytes that differ from generate's", folder, model, encode(prompt), encode(said[len(prompt) : -1]))
        model.float().save_pretrained(folder / "back")
        if more:
            auto.save_pretrained(folder / "back")
        report("  saved again by transformers, read as text here: loss moves by", abs(evaluated(options, folder / "back", text)[0] - ours), 0)


def check_full(options, folder):
    model, tokens = scrambled(GPT2, options.seed), np.random.default_rng(options.seed).integers(0, 50257, 1025).tolist()
    model.save_pretrained(folder / "full")
    shard = write_shard(folder / "full.bin", tokens)
    start = time.time()
    truth = token_losses(model, tokens, 1024).mean().item()
    middle = time.time()
    ours, _ = evaluated(options, folder / "full", shard)
    note = f"{ours:.6f}; {time.time() - middle:.1f} s here, {middle - start:.1f} s there in float64; {options.peak / 1e9:.2f} GB here"
    report("GPT-2 124M's shape: loss of 1024 tokens, against float64", abs(ours - truth), allowed(GPT2, truth), note)
    del model
    for recipe, size in ("fp32", 497904640), ("bf16", 248952832):
        start = time.time()
        train_gpt(options, "--from", folder / "full", "--export", folder / "full_model.bin", "--recipe", recipe)
        equal(f"  llm.c's file in {recipe}: its size", (folder / "full_model.bin").stat().st_size, size, f"{time.time() - start:.1f} s, {options.peak / 1e9:.2f} GB")
        if recipe == "fp32":
            report("  loss of that file, against the folder's", abs(evaluated(options, folder / "full_model.bin", shard)[0] - ours), 0)
    start = time.time()
    train_gpt(options, "--from", folder / "full", "--tokens", 20, "--recipe", "fp32")
    print(f"  20 tokens drawn in {time.time() - start:.1f} s, loading included; {options.peak / 1e9:.2f} GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", default="./train_gpt", help="the program to check (./train_gpt)")
    parser.add_argument("--full", action="store_true", help="also with GPT-2 124M's shape, on Linux: a minute, 4 GB of memory, 2 GB of disk")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        theirs, model = check_theirs(options, folder, SMALL)
        check_sampling(options, folder, theirs, model)
        check_fine_tuning(options, folder, theirs, SMALL)
        check_ours(options, folder)
        if options.full:
            check_full(options, folder)
    print("all as it should be" if not failures else f"{failures} checks FAIL")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

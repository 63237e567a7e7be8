"""Makes golden_folders.h for test_golden_folders.c, and checks our folders with the real library.

    python3 golden_folders.py >golden_folders.h        folders as transformers writes them
    python3 golden_folders.py check FOLDER TOKENS      loads FOLDER with transformers, strictly, and
                                                       prints the mean loss over TOKENS ("5 3 8 …"):
                                                       `lockstep eval` must say the same

Weights follow from the name of a tensor and the place of an element, in fractions that float32 and
bfloat16 hold exactly, so only headers and texts are kept; the test makes the files again, and their
sha256 must be that of the files that transformers wrote. Needs torch, transformers, safetensors;
made with the versions in the header's first line.
"""

import hashlib
import json
import os
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

MODELS = {
    "gpt2": transformers.GPT2Config(vocab_size=7, n_positions=5, n_embd=4, n_layer=1, n_head=2,
                                     bos_token_id=None, eos_token_id=None),
    "llama": transformers.LlamaConfig(
        vocab_size=7, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=5,
        tie_word_embeddings=False),
    "llama_tied": transformers.LlamaConfig(
        vocab_size=7, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=5,
        tie_word_embeddings=True),
}
# name, model, type of the weights, largest shard in bytes
FOLDERS = [
    ("gpt2_whole", "gpt2", torch.float32, 10**9),
    ("gpt2_shards", "gpt2", torch.float32, 700),
    ("gpt2_bf16", "gpt2", torch.bfloat16, 10**9),
    ("llama_whole", "llama", torch.float32, 10**9),
    ("llama_shards", "llama", torch.bfloat16, 900),
    ("llama_tied_whole", "llama_tied", torch.float32, 10**9),
]


def fill(model):
    done = set()
    for name, value in sorted(model.state_dict().items()):
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        start = sum(name.encode())
        places = torch.arange(value.numel(), dtype=torch.int64)
        numbers = ((places * 7 + start) % 64 - 32).to(torch.float32) / 64
        value.copy_(numbers.reshape(value.shape))
        done.add(name)
    return done


def text_of(data):
    """Bytes as lines of a C string."""
    lines = []
    for line in data.decode().splitlines(keepends=True):
        for at in range(0, len(line), 72):
            piece = line[at:at + 72].replace("\\", "\\\\").replace('"', '\\"')
            lines.append('        "' + piece.replace("\n", "\\n") + '"')
    return "\n".join(lines)


def print_folder(name, model_name, dtype, cap):
    model = AutoModelForCausalLM.from_config(MODELS[model_name]).to(dtype)
    with torch.no_grad():
        fill(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=cap)
        names = sorted(os.listdir(folder))
        config = open(os.path.join(folder, "config.json"), "rb").read()
        print(f'    {{"{name}", "{model_name.split("_")[0]}",\n{text_of(config)},')
        index = os.path.join(folder, "model.safetensors.index.json")
        print(text_of(open(index, "rb").read()) if os.path.exists(index) else "        NULL", end=",\n")
        print("     {")
        for file in names:
            if file.endswith(".safetensors"):
                data = open(os.path.join(folder, file), "rb").read()
                n = int.from_bytes(data[:8], "little")
                digest = hashlib.sha256(data).hexdigest()
                print(f'      {{"{file}",\n       "{digest}",\n{text_of(data[8:8 + n])}}},')
        print("     }},")


def print_all():
    print(f"/* Made by golden_folders.py with torch {torch.__version__.split('+')[0]} and "
          f"transformers {transformers.__version__}. */")
    print("/* clang-format off */")
    print("static const golden_folder FOLDERS[] = {")
    for row in FOLDERS:
        print_folder(*row)
    print("};")


def check(folder, tokens):
    config = AutoConfig.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=config, output_loading_info=True, dtype=torch.float32)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(what), (what, info[what])
    ids = torch.tensor([[int(token) for token in tokens.split()]])
    with torch.no_grad():
        logits = model.eval().to(torch.float64)(ids[:, :-1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    right = (logits.argmax(-1) == ids[0, 1:]).sum().item()
    print(f"{type(model).__name__}: loss {loss.item():.9f}, {right} of {len(ids[0]) - 1} right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check(*sys.argv[2:])
    else:
        print_all()

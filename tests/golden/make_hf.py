#!/usr/bin/env python3
"""make_hf.py: small random models as transformers saves them, with the logits it computes.

    make_hf.py OUT [NAME..]   writes the folders that tests/golden/hf holds, or those named
    make_hf.py --check DIR..  loads folders (ours, written by a run or by hybrid-export) with
                              transformers and compares logits with expected.safetensors beside or
                              in the folder that --expected names

Each folder is a model of 2 or 3 layers, width 32 and vocabulary 96, and expected.safetensors: a row of
tokens and their logits, computed in fp32 from the weights as saved. Needs torch, transformers,
safetensors; the tests themselves need none of them.
"""
import argparse
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MinistralConfig, MinistralForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=20, vocab_size=96, max_position_embeddings=24,
             initializer_range=0.2, bos_token_id=1, eos_token_id=2)
NARROW = dict(head_dim=4)  # not width / heads
THREE = dict(SIZES, num_hidden_layers=3)
SLIDING, FULL = "sliding_attention", "full_attention"
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=16, vocab_size=96, initializer_range=0.2,
            bos_token_id=0, eos_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=1000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=3.0, original_max_position_embeddings=16)

CASES = {
    # name: class, config, dtype, bytes of a shard
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=40), torch.float16, None),
    "gpt2-untied": (GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=24, tie_word_embeddings=False),
                    torch.bfloat16, None),
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, **NARROW, tie_word_embeddings=False),
              torch.float32, None),
    "llama-tied-bias": (LlamaForCausalLM,
                        LlamaConfig(**SIZES, **NARROW, tie_word_embeddings=True,
                                    attention_bias=True, mlp_bias=True), torch.float16, None),
    "llama-attention-bias": (LlamaForCausalLM,
                             LlamaConfig(**SIZES, **NARROW, tie_word_embeddings=True,
                                         attention_bias=True), torch.bfloat16, None),
    "llama3-rope": (LlamaForCausalLM,
                    LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3),
                    torch.bfloat16, None),
    "mistral": (MistralForCausalLM,
                MistralConfig(**SIZES, **NARROW, sliding_window=5, tie_word_embeddings=False),
                torch.bfloat16, "12KB"),
    "ministral": (MinistralForCausalLM,
                  MinistralConfig(**THREE, **NARROW, sliding_window=4, tie_word_embeddings=False,
                                  layer_types=[FULL, SLIDING, FULL]), torch.float32, None),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True), torch.bfloat16,
              None),
    "qwen2-window": (Qwen2ForCausalLM,
                     Qwen2Config(**SIZES, **NARROW, tie_word_embeddings=False, use_sliding_window=True,
                                 sliding_window=6, max_window_layers=0), torch.float16, None),
    "qwen2-mixed": (Qwen2ForCausalLM,
                    Qwen2Config(**THREE, **NARROW, tie_word_embeddings=True,
                                use_sliding_window=True, sliding_window=3,
                                layer_types=[SLIDING, FULL, SLIDING]), torch.bfloat16, None),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, **NARROW, tie_word_embeddings=True),
              torch.bfloat16, "8KB"),
    "qwen3-bias": (Qwen3ForCausalLM,
                   Qwen3Config(**SIZES, **NARROW, tie_word_embeddings=False, attention_bias=True),
                   torch.bfloat16, None),
    "qwen3-mixed": (Qwen3ForCausalLM,
                    Qwen3Config(**THREE, **NARROW, tie_word_embeddings=False,
                                use_sliding_window=True, sliding_window=5, max_window_layers=2),
                    torch.float16, None),
}


def logits_of(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(tokens.long()[None]).logits[0].contiguous()


def make(out, name):
    kind, config, dtype, shard = CASES[name]
    torch.manual_seed(len(name) * 1000 + sum(map(ord, name)))
    model = kind(config)
    with torch.no_grad():  # norms and biases that matter
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shard) if shard else {}))
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    tokens = torch.randint(0, 96, (10,), dtype=torch.int32)
    save_file({"tokens": tokens, "logits": logits_of(folder, tokens)},
              os.path.join(folder, "expected.safetensors"))


def check(folder, expected):
    golden = load_file(os.path.join(expected, "expected.safetensors"))
    found = logits_of(folder, golden["tokens"])
    far = ((found - golden["logits"]).norm() / golden["logits"].norm()).item()
    print(f"{folder}: {far:.2e}")
    return far <= 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", nargs="+", metavar="DIR")
    parser.add_argument("--expected", metavar="DIR", help="folder of expected.safetensors")
    parser.add_argument("out", nargs="?")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.check:
        return 0 if all([check(f, args.expected or f) for f in args.check]) else 1
    for name in args.names or CASES:
        make(args.out, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""make_bnb.py: small random models as transformers saves them after bitsandbytes has quantised them.

    make_bnb.py OUT [NAME..]            writes the folders that tests/golden/bnb holds, or those named
    make_bnb.py --random N --seed S OUT writes N folders of random shapes and options instead

Beside each folder's files lies expected.safetensors: a row of tokens; the logits of the decoded model,
computed in fp32; those of the quantised model as transformers runs it ("run"); and for each quantised
matrix two SHA-256 of the numbers that dequantize_4bit makes of it, of their bytes in the type that its
quant_state names ("NAME.rounded") and in fp32 ("NAME.exact"), in digits. Needs torch, transformers, bitsandbytes,
safetensors; the tests themselves need none of them.
"""
import argparse
import copy
import hashlib
import os
import random
import shutil
import sys
import tempfile

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, Gemma3ForCausalLM,
                          Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig,
                          GPTNeoXForCausalLM, GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM,
                          LlamaConfig, LlamaForCausalLM, Phi3Config,
                          Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

TOKENS, VOCAB = 10, 96
STATE = ".quant_state.bitsandbytes__nf4"


def rope(cls, config, width, mlp, heads=4, kv=2, head=16, layers=1, **more):
    return cls, config(hidden_size=width, intermediate_size=mlp, num_attention_heads=heads,
                       num_key_value_heads=kv, head_dim=head, num_hidden_layers=layers,
                       vocab_size=VOCAB, max_position_embeddings=24, initializer_range=0.2,
                       bos_token_id=1, eos_token_id=2, **more)


def gpt2(width, inner, layers=1):
    return GPT2LMHeadModel, GPT2Config(n_embd=width, n_inner=inner, n_layer=layers, n_head=4,
                                       n_positions=16, vocab_size=VOCAB, initializer_range=0.2,
                                       bos_token_id=0, eos_token_id=0)


LLAMA, QWEN2, QWEN3 = (LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config), (
    Qwen3ForCausalLM, Qwen3Config)
PHI3, GEMMA3, GRANITE4 = (Phi3ForCausalLM, Phi3Config), (Gemma3ForCausalLM, Gemma3TextConfig), (
    GraniteMoeHybridForCausalLM, GraniteMoeHybridConfig)
SKIPPED = ["lm_head", "q_proj"]
SOME = ["lm_head", "model.layers.0.mlp", "model.layers.1.self_attn.o_proj"]

CASES = {
    # name: model, type, double quantisation, storage of codes, skipped modules, block
    "llama-double": (rope(*LLAMA, 64, 320), torch.bfloat16, True, torch.uint8, None, 64),
    "llama-single": (rope(*LLAMA, 64, 96), torch.float32, False, torch.uint8, None, 64),
    "gpt2-double": (gpt2(64, 128), torch.float16, True, torch.uint8, None, 64),
    "qwen2-skipped": (rope(*QWEN2, 64, 64), torch.bfloat16, True, torch.bfloat16, SKIPPED, 64),
    "qwen3-long-blocks": (rope(*QWEN3, 64, 64, head=8), torch.bfloat16, True, torch.uint8, None,
                          256),
    "llama-some": (rope(*LLAMA, 64, 64, layers=2), torch.float32, True, torch.uint8, SOME, 64),
    "phi3-double": (rope(*PHI3, 64, 64, pad_token_id=0), torch.bfloat16, True, torch.uint8, None,
                    64),
    "gemma3-double": (rope(*GEMMA3, 64, 64), torch.bfloat16, True, torch.uint8, None, 64),
    "granite4-double": (rope(*GRANITE4, 64, 64, num_local_experts=0, shared_intermediate_size=64,
                             layer_types=["attention"]), torch.bfloat16, True, torch.uint8, None,
                        64),
    "neox-double": ((GPTNeoXForCausalLM, GPTNeoXConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=2,
        vocab_size=VOCAB, max_position_embeddings=24, initializer_range=0.2)), torch.bfloat16, True,
                    torch.uint8, None, 64),
}


def random_case(dice):
    width, mlp = dice.choice([64, 128, 192]), dice.choice([20, 64, 96, 192, 448])
    layers, head = dice.choice([1, 2]), dice.choice([8, 16, 20])
    kind = dice.choice([LLAMA, QWEN2, QWEN3, None])
    model = rope(*kind, width, mlp, head=head, layers=layers) if kind else gpt2(width, mlp, layers)
    return (model, dice.choice([torch.bfloat16, torch.float16, torch.float32]),
            dice.random() < 0.6, dice.choice([torch.uint8, torch.uint8, torch.bfloat16]),
            dice.choice([None, None, SKIPPED]), dice.choice([64, 64, 128, 512]))


def digest(tensor):
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(bytearray(hashlib.sha256(data).hexdigest().encode()), dtype=torch.uint8)


def state_of(tensors, name):
    beside = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
    return bnb.QuantState.from_dict(beside, device=torch.device("cpu"))


def decoded(tensors, name, dtype=None):
    """A quantised matrix as dequantize_4bit gives it, in the type of its state or in another."""
    state = copy.copy(state_of(tensors, name))
    if dtype:
        state.dtype = dtype
    return bnb.dequantize_4bit(tensors[name].view(torch.uint8).reshape(-1, 1), state)


def rounded(tensors, name):
    """The same in the type of its state. The CPU kernel of bitsandbytes rounds ties in fp16 away from
    zero; torch and we round them to even."""
    direct = decoded(tensors, name)
    again = decoded(tensors, name, torch.float32).to(direct.dtype)
    assert direct.dtype == torch.float16 or torch.equal(direct, again), name
    assert torch.allclose(direct.float(), again.float(), rtol=2 ** -10, atol=2 ** -24), name
    return again


def quantise_again(folder, source, block):
    """Blocks of another length, which transformers has no option for."""
    path = os.path.join(folder, "model.safetensors")
    tensors, plain = load_file(path), load_file(os.path.join(source, "model.safetensors"))
    for name in [k[:-len(STATE)] for k in tensors if k.endswith(STATE)]:
        nested = name + ".nested_absmax" in tensors
        matrix = plain[name]
        if matrix.shape != state_of(tensors, name).shape:
            matrix = matrix.T
        codes, state = bnb.quantize_4bit(matrix.contiguous(), blocksize=block, quant_type="nf4",
                                         compress_statistics=nested)
        for key in [k for k in tensors if k.startswith(name + ".")]:
            del tensors[key]
        tensors[name] = codes.reshape(-1).view(tensors[name].dtype).reshape(-1, 1)
        tensors.update({f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()})
    save_file(tensors, path, metadata={"format": "pt"})


def plain_logits(cls, config, tensors, tokens):
    """The model of the decoded numbers, in fp32."""
    weights = {}
    for name, tensor in tensors.items():
        if any(name.startswith(k[:-len(STATE)] + ".") for k in tensors if k.endswith(STATE)):
            continue
        is_coded = name + STATE in tensors
        value = rounded(tensors, name).float() if is_coded else tensor.float()
        is_turned = is_coded and cls is GPT2LMHeadModel
        name = name.replace("embed_out.", "lm_head.")  # the file's name of GPT-NeoX's head
        weights[name] = value.T.contiguous() if is_turned else value
    model = cls(config).eval().float()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("lm_head" in m for m in missing), (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        return model(tokens).logits[0]


def make(case, seed, out):
    (cls, config), dtype, double, storage, skipped, block = case
    torch.manual_seed(seed)
    source = tempfile.mkdtemp()
    cls(config).to(dtype).save_pretrained(source)
    options = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                 bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype=dtype,
                                 bnb_4bit_quant_storage=storage, llm_int8_skip_modules=skipped)
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=options, dtype=dtype,
                                                 device_map="cpu")
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    if block != 64:
        quantise_again(out, source, block)
    for name in os.listdir(out):
        if name not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(out, name))
    shutil.rmtree(source)
    tensors = load_file(os.path.join(out, "model.safetensors"))
    tokens = torch.randint(0, VOCAB, (1, TOKENS))
    run = AutoModelForCausalLM.from_pretrained(out, device_map="cpu", dtype=dtype).eval()
    with torch.no_grad():
        ran = run(tokens).logits[0].float()
    expected = {"tokens": tokens[0].to(torch.int32),
                "logits": plain_logits(cls, config, tensors, tokens).contiguous(),
                "run": ran.contiguous()}
    for name in [k[:-len(STATE)] for k in tensors if k.endswith(STATE)]:
        expected[name + ".rounded"] = digest(rounded(tensors, name))
        expected[name + ".exact"] = digest(decoded(tensors, name, torch.float32))
    save_file(expected, os.path.join(out, "expected.safetensors"),
              metadata={"dtype": str(dtype).removeprefix("torch.")})
    far = (ran - expected["logits"]).norm() / expected["logits"].norm()
    coded = sum(k.endswith(STATE) for k in tensors)
    print(f"{os.path.basename(out)}: {coded} matrices, {'double' if double else 'single'}, blocks "
          f"of {block}, {str(dtype)}; run as it is: off by {far:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cases = CASES
    if given.random:
        dice = random.Random(given.seed)
        cases = {f"random-{i}": random_case(dice) for i in range(given.random)}
    for i, (name, case) in enumerate(cases.items()):
        if not given.names or name in given.names:
            make(case, given.seed + i, os.path.join(given.out, name))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Makes small random models of every family that llama.cpp runs, with real tokenizers.

    make_folders.py OUT TOKENIZERS

TOKENIZERS has the folders gpt2, llama2 and llama3. Each folder of OUT also gets expected.safetensors
(as in tests/golden/families: tokens, logits and greedy tokens of transformers) and texts.json (texts
and their ids). Needs torch, transformers, sentencepiece and safetensors."""

import json
import pathlib
import random
import shutil
import sys

import numpy as np
import sentencepiece
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
PIECES = HERE.parent / "golden" / "sentencepiece"
SIZES = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
             torch_dtype="float32")


def family(config, model, tokenizer, **other):
    return dict(config=config, model=model, tokenizer=tokenizer, other=other)


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=10000.0,
            beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64, rope_theta=500000.0)
FAMILIES = {
    "llama": family("LlamaConfig", "LlamaForCausalLM", "llama2"),
    "llama-pieces": family("LlamaConfig", "LlamaForCausalLM", "llama.model"),
    "llama3": family("LlamaConfig", "LlamaForCausalLM", "llama3", rope_parameters=LLAMA3,
                     tie_word_embeddings=True, head_dim=16),
    "mistral": family("MistralConfig", "MistralForCausalLM", "llama2", sliding_window=None),
    "qwen2": family("Qwen2Config", "Qwen2ForCausalLM", "llama3"),
    "qwen3": family("Qwen3Config", "Qwen3ForCausalLM", "llama3", head_dim=32),
    "gemma2": family("Gemma2Config", "Gemma2ForCausalLM", "gemma.model", head_dim=32,
                     query_pre_attn_scalar=32, sliding_window=8),
    "gemma3": family("Gemma3TextConfig", "Gemma3ForCausalLM", "gemma.model", head_dim=32,
                     query_pre_attn_scalar=32, sliding_window=8, num_hidden_layers=7),
    "olmo2": family("Olmo2Config", "Olmo2ForCausalLM", "llama3"),
    "olmo3": family("Olmo3Config", "Olmo3ForCausalLM", "gpt2", sliding_window=8),
    "phi3": family("Phi3Config", "Phi3ForCausalLM", "gpt2", sliding_window=None, pad_token_id=0),
    "smollm3": family("SmolLM3Config", "SmolLM3ForCausalLM", "llama3", pad_token_id=0),
    "granite": family("GraniteConfig", "GraniteForCausalLM", "gpt2", embedding_multiplier=3.0,
                      residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0),
    "granite4": family("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", "gpt2",
                       num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=256,
                       layer_types=["attention"] * 4, position_embedding_type="rope",
                       mamba_n_heads=8, attention_multiplier=0.25),
    "ministral3": family("Ministral3Config", "Ministral3ForCausalLM", "llama3", head_dim=16,
                         rope_parameters=YARN, sliding_window=None),
    "starcoder2": family("Starcoder2Config", "Starcoder2ForCausalLM", "gpt2",
                         sliding_window=None, use_bias=True),
    "gpt2": family("GPT2Config", "GPT2LMHeadModel", "gpt2", n_embd=64, n_layer=4, n_head=4,
                   n_positions=512, n_ctx=512),
    "gpt_neox": family("GPTNeoXConfig", "GPTNeoXForCausalLM", "gpt2"),
}

# Fields that transformers 5 renames, in the names that the converter of llama.cpp reads.
OLD_NAMES = {
    "granite4": {"layer_types": ["attention"] * 4},
}

CONFIGS = {
    "llama.model": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
                    "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False,
                    "legacy": True},
    "gemma.model": {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>",
                    "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                    "add_bos_token": True, "add_eos_token": False},
}


def put_tokenizer(folder, name, tokenizers, kind):
    if name.endswith(".model"):
        shutil.copy(PIECES / name, folder / "tokenizer.model")
        (folder / "tokenizer_config.json").write_text(json.dumps(CONFIGS[name]))
        return
    for file in (tokenizers / name).iterdir():
        shutil.copy(file, folder / file.name)
    if kind == "phi3":  # its converter knows byte-level tokenizers by this class
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(dict(config, tokenizer_class="GPT2Tokenizer")))


def hard_texts():
    source = (HERE.parent / "golden" / "make_tokenizers.py").read_text(encoding="utf-8")
    begin, end = source.index("BLANK ="), source.index("def texts()")
    names = {}
    exec(source[begin:end], names)
    draw = random.Random(1)
    texts = ["", " ", "Hello world", " Hello  world\n\n", "a\tb", "I've 1234 don't", "ÀÉ日本語 🦙"]
    for _ in range(2000):
        text = ""
        for _ in range(draw.choice([1, 2, 3, 5, 8, 13])):
            word = draw.choice(names["WORDS"])
            low, high = draw.choice(names["RANGES"])
            text += word if draw.random() < 0.6 else chr(draw.randrange(low, high))
        texts.append(text)
    return texts


def expect(model, vocab):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, min(vocab, 4000), (2, 26), generator=generator)
    with torch.no_grad():
        logits = model(tokens).logits.float()
        row = tokens[:1, :8]
        for _ in range(40):
            row = torch.cat([row, model(row).logits[:, -1:].argmax(-1)], 1)
    return dict(tokens=tokens.numpy().astype(np.int32), logits=logits.numpy(),
                greedy=row[0, 8:].numpy().astype(np.int32))


def make(out, name, tokenizers):
    spec = FAMILIES[name]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    put_tokenizer(folder, spec["tokenizer"], tokenizers, name)
    is_pieces = spec["tokenizer"].endswith(".model")
    if is_pieces:
        encode = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        vocab = encode.vocab_size()
    else:
        encode = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocab = encode.get_vocab_size()
    vocab += 5  # ids without a token
    torch.manual_seed(1)
    sizes = {} if name == "gpt2" else SIZES
    config = getattr(transformers, spec["config"])(**{**sizes, **spec["other"], "vocab_size": vocab})
    model = getattr(transformers, spec["model"])(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.to(torch.bfloat16).save_pretrained(folder)  # bf16 numbers, exact in every type
    put_tokenizer(folder, spec["tokenizer"], tokenizers, name)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **OLD_NAMES.get(name, {})}))
    model = getattr(transformers, spec["model"]).from_pretrained(folder, dtype=torch.float32).eval()
    save_file(expect(model, vocab), folder / "expected.safetensors", {"prompt": "8"})
    ids = [encode.encode(t) if is_pieces else encode.encode(t, add_special_tokens=False).ids
           for t in hard_texts()]
    has_pieces = is_pieces or spec["tokenizer"] == "llama2"
    unclear = ["<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>"] if has_pieces else []
    texts = dict(parses_special=True, unclear=unclear, texts=list(zip(hard_texts(), ids)))
    (folder / "texts.json").write_text(json.dumps(texts))
    print(name, vocab, sum(p.numel() for p in model.parameters()))


def main():
    out, tokenizers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or FAMILIES:
        make(out, name, tokenizers)


main()

#!/usr/bin/env python3
"""Makes gguf/blocks.safetensors and gguf/mixes.txt: what the `gguf` package and llama.cpp make of small matrices.

    pip install gguf safetensors llama-cpp-python     # the last one builds llama.cpp; it must not use FMA in ggml-base
    python3 tests/golden/make_blocks.py

blocks.safetensors: case C has numbers `C.x` (rows, columns), importance `C.w` (columns), and for each type T the
bytes `C.T` without importance and `C.T.w` with it. Bytes of Q4_0, Q5_0, Q8_0, BF16 and F16 without importance come
from the `gguf` package, all others from ggml_quantize_chunk. `decode.T` are random bytes of type T and `decode.T.x`
the numbers that the `gguf` package decodes them to.

mixes.txt: the types that llama_model_quantize gives to the tensors of small files. A line has architecture, layers,
heads, key-value heads, 1 for a tied head, 1 for importance, mix, tensor (# stands for the layer), rows, columns and
one letter for each layer: f = F32, h = F16, b = BF16, 4 = Q4_0, a = Q4_1, 5 = Q5_0, c = Q5_1, 8 = Q8_0, k = Q4_K,
l = Q5_K, m = Q6_K.
"""
import ctypes
import os
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from safetensors.numpy import save_file

FOLDER = Path(__file__).resolve().parent / "gguf"
GGML = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
GGML.ggml_quantize_chunk.restype = ctypes.c_size_t
GGML.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                     ctypes.c_int64, ctypes.c_void_p]
ENCODED = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]
DECODED = ENCODED + [T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
BY_GGUF = [T.F16, T.BF16, T.Q4_0, T.Q5_0, T.Q8_0]


def pointer(array):
    return None if array is None else array.ctypes.data


def encode(x, kind, importance):
    if kind in BY_GGUF and importance is None:
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(gguf.quants.quantize(x, kind)).view(np.uint8)
    elements, size = GGML_QUANT_SIZES[kind]
    out = np.zeros((x.shape[0], x.shape[1] // elements * size), np.uint8)
    GGML.ggml_quantize_chunk(int(kind), pointer(x), pointer(out), 0, *x.shape, pointer(importance))
    return out


def matrices(rng):
    """Pairs of a name and a matrix; rows of `narrow` have whole blocks of 32 only."""
    def normal(rows=1, cols=512):
        return rng.standard_normal((rows, cols)).astype(np.float32)

    def powers(low, high, group):
        return (normal() * 10.0 ** np.repeat(rng.uniform(low, high, (1, 512 // group)), group, axis=1)).astype(np.float32)

    yield "normal", normal(2) * np.float32(0.02)
    yield "narrow", normal(3, 160)
    yield "ties", (rng.integers(-127, 128, (1, 512)) * np.float32(0.5)).astype(np.float32)
    x = normal()
    x[0, 5] = 1000
    x[0, 256::64] *= -300
    yield "outliers", x
    x = normal()
    x[0, :64] = x[0, 256:] = 0
    x[0, 300] = 1
    yield "zeros", x
    yield "negative_zeros", np.where(rng.random((1, 512)) < 0.5, np.float32(0), np.float32(-0.0)).astype(np.float32)
    yield "above_0", np.abs(normal()) + 3
    yield "below_0", -np.abs(normal()) - 3
    yield "equal", np.repeat(rng.choice([-0.5, 0, 0.25], (1, 16)), 32, axis=1).astype(np.float32)
    yield "scales", powers(-12, 4, 16)
    yield "tiny", powers(-42, -14, 32)
    yield "subnormal", (rng.integers(-100, 100, (1, 512)) * np.float32(1.4e-45)).astype(np.float32)
    yield "huge", powers(3, 30, 32)


def blocks():
    rng = np.random.default_rng(39)
    tensors = {}
    for number, (name, x) in enumerate(matrices(rng)):
        importance = (rng.random(x.shape[1]) ** 4).astype(np.float32)
        if number % 2:
            importance[rng.random(x.shape[1]) < 0.6] = 0
        tensors[f"{name}.x"], tensors[f"{name}.w"] = x, importance
        for kind in ENCODED:
            if x.shape[1] % GGML_QUANT_SIZES[kind][0]:
                continue
            if kind not in (T.F16, T.BF16) or name in ("scales", "tiny"):
                tensors[f"{name}.{kind.name}"] = encode(x, kind, None)
            if kind not in (T.F16, T.BF16, T.Q8_0):
                tensors[f"{name}.{kind.name}.w"] = encode(x, kind, importance)
    for kind in DECODED:
        elements, size = GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (max(1, 256 // elements), size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            numbers = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(-1)
        tensors[f"decode.{kind.name}"], tensors[f"decode.{kind.name}.x"] = data, numbers
    save_file(tensors, FOLDER / "blocks.safetensors")
    (FOLDER / "blocks.safetensors").chmod(0o644)


MIXES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q6_k": 18, "q5_k_m": 17, "q5_0": 8, "q4_k_m": 15, "q4_0": 2}
LETTERS = {T.F32: "f", T.F16: "h", T.BF16: "b", T.Q4_0: "4", T.Q4_1: "a", T.Q5_0: "5", T.Q5_1: "c", T.Q8_0: "8",
           T.Q4_K: "k", T.Q5_K: "l", T.Q6_K: "m"}
SPLIT = ["attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_gate.weight", "ffn_up.weight",
         "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight", "attn_q.bias"]
FUSED = ["attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight", "attn_norm.weight",
         "attn_qkv.bias", "ffn_down.bias"]
LAYERS = {"llama": SPLIT, "qwen2": SPLIT, "qwen3": SPLIT, "gemma2": SPLIT, "gemma3": SPLIT, "olmo2": SPLIT,
          "granite": SPLIT, "starcoder2": SPLIT, "smollm3": SPLIT, "gpt2": FUSED, "gptneox": FUSED, "phi3": FUSED}


def shapes(arch, tied, width, inner):
    """Name, rows and columns of each tensor; rows are few, because no rule depends on them."""
    names = ["token_embd.weight", "output_norm.weight"] + ([] if tied else ["output.weight"])
    names += ["position_embd.weight"] if arch == "gpt2" else []
    for name in names + ["blk.#." + name for name in LAYERS[arch]]:
        is_vector = "norm" in name or name.endswith("bias")
        yield name, 1 if is_vector else 2, inner if name.endswith("ffn_down.weight") else width


def write_model(path, case):
    arch, layers, heads, kv_heads, tied, width, inner = case
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_sliding_window(32)
    writer.add_parallel_residual(True)
    writer.add_logit_scale(1.0)
    writer.add_key_length(16)
    writer.add_value_length(16)
    for name, rows, cols in shapes(arch, tied, width, inner):
        for layer in range(layers if "#" in name else 1):
            shape = (cols,) if rows == 1 else (rows, cols)
            writer.add_tensor(name.replace("#", str(layer)), np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mix_lines(case, mixes=tuple(MIXES)):
    """What llama.cpp chooses, one line for each tensor of a layer."""
    arch, layers, heads, kv_heads, tied, width, inner = case
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.gguf"), os.path.join(folder, "out.gguf")
        write_model(source, case)
        for mix in mixes:
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.nthread = MIXES[mix], 1
            if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
                raise SystemExit(f"llama.cpp does not quantise {case} to {mix}")
            types = {t.name: t.tensor_type for t in gguf.GGUFReader(target).tensors}
            for name, rows, cols in shapes(arch, tied, width, inner):
                letters = "".join(LETTERS[types[name.replace("#", str(i))]] for i in range(layers if "#" in name else 1))
                yield (f"{arch} {layers} {heads} {kv_heads} {int(tied)} {mix} {name} {rows} "
                       f"{cols} {letters}")


def mixes():
    k_mixes = ("q5_k_m", "q4_k_m")
    cases = [
        (("llama", 8, 8, 2, False, 256, 512), tuple(MIXES)),
        (("qwen2", 24, 4, 2, True, 256, 512), tuple(MIXES)),
        (("gpt2", 12, 4, 4, True, 256, 1024), tuple(MIXES)),
        (("phi3", 32, 4, 4, False, 256, 512), k_mixes),
        (("gemma3", 26, 4, 1, True, 288, 544), tuple(MIXES)),  # rows that only blocks of 32 cut
        (("llama", 3, 4, 4, False, 80, 520), tuple(MIXES)),  # rows that no block cuts
        (("qwen2", 2, 4, 4, False, 96, 256), tuple(MIXES)),  # only ffn_down has whole blocks
        (("llama", 80, 8, 1, False, 256, 256), k_mixes),  # 70B
        (("llama", 80, 8, 8, False, 256, 256), k_mixes),
        (("qwen2", 80, 8, 8, False, 256, 256), k_mixes),
    ]
    lines = [line for case in cases for line in mix_lines(*case)]
    (FOLDER / "mixes.txt").write_text("\n".join(lines) + "\n")


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    pass


if __name__ == "__main__":
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    FOLDER.mkdir(exist_ok=True)
    blocks()
    mixes()

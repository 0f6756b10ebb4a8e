#!/usr/bin/env bash
# Files of hybrid-export --gguf in llama.cpp: every golden family and adapter in every type, logits and
# greedy tokens against transformers and PEFT; ids of 10,000 random texts through every kind of tokenizer;
# answers of a chat against hybrid-chat.
#
# Needs a Python with numpy and llama-cpp-python, which HYBRID_LLAMA_PYTHON names (else python3); without
# them the case is left out. tests/gguf/make_folders.py and compare_converter.py, which need torch and the
# sources of llama.cpp, are run by hand. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bin="${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}"
lib="${HYBRID_BUILD:-$root/build}/lib/libhybrid.so"
"${HYBRID_LLAMA_PYTHON:-python3}" "$root/tests/gguf/check_llama_cpp.py" "$bin/hybrid-export" &&
    "${HYBRID_LLAMA_PYTHON:-python3}" "$root/tests/gguf/compare_tokenizers.py" "$bin/hybrid-export" "$lib" &&
    "${HYBRID_LLAMA_PYTHON:-python3}" "$root/tests/gguf/compare_chat.py" "$bin"
case $? in
0) echo "1 passed, 0 failed" ;;
77) echo "left out: no llama-cpp-python, or no data (HYBRID_LLAMA_PYTHON names a Python that has it)"
    echo "0 passed, 0 failed" ;;
*) echo "0 passed, 1 failed"
    exit 1 ;;
esac

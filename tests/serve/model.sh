#!/bin/sh
# model.sh BIN OUT: makes a small model whose tokens are bytes, with a context of 8192 tokens.
"$1/hybrid-train" --model nano --layers 1 --width 32 --heads 2 --context 8192 --seq-len 512 --batch-size 1 --steps 2 \
    --grad-accum-steps 1 --builtin-bytes 60000 --sample-tokens 0 --threads 1 --device cpu --quiet --out "$2"

# formulas.awk: the formulas of docs/memory.md, held against a plan.
#
#   awk -v name=WHAT -f formulas.awk CONFIG PLAN
#
# CONFIG is what --print-config prints, PLAN the values of --plan --json, a line each (tests/cli/json.awk).
# All classes are on the device, as --print-config says. Prints a line for each figure that is not the plan's.

FILENAME == ARGV[1] {
    if ($2 != "=") next
    gsub(/[";]/, "", $3)
    set[$1] = $3 ~ /^[0-9.]+$/ ? $3 + 0 : $3
    next
}
{ sub(/^\./, "", $1); plan[$1] = $2 }

function padded(v) { return v < 1024 ? v : int((v + 63) / 64) * 64 }

# Bytes a token leaves behind in one layer, by what is not kept.
function layer(   norms, attention, mlp, rest) {
    norms = 2 * e * C + (gated ? 0 : e * F)
    attention = e * (Q + A) + 4 * H + (set["qk_norm"] == "true" ? e * Q + 4 * (H + K) : 0)
    mlp = e * F * (gated ? 2 : 1)
    rest = e * C + (set["norm"] == "rmsnorm" ? 8 : 16)
    if (level == "all") return 0
    if (level == "norm") return attention + mlp + rest
    if (level == "attention") return mlp + rest
    if (level == "mlp") return attention + rest
    return norms + attention + mlp + rest
}

function bytes_of(class) { return plan["phases.full.classes." class ".bytes"] + 0 }

# Tensors begin at multiples of 256 bytes and small ones stay in fp32: a few hundred bytes each.
function expect(class, bytes, allowed,   got) {
    got = bytes_of(class)
    if (got < bytes || got > bytes * (1 + allowed)) {
        printf "%s: %s is %.0f in the plan, %.0f by the formula\n", name, class, got, bytes
    }
}

END {
    e = set["precision"] == "fp32" ? 4 : 2
    C = set["width"]; H = set["heads"]; L = set["layers"]; V = padded(set["vocab"])
    K = set["kv_heads"] > 0 ? set["kv_heads"] : H
    D = set["head_size"] > 0 ? set["head_size"] : C / H
    F = set["mlp_width"] > 0 ? set["mlp_width"] : 4 * C
    gated = set["activation"] == "swiglu"
    Q = (H + 2 * K) * D; A = H * D
    N = set["batch_size"] * set["seq_len"]
    level = set["recompute"]
    P = plan["parameters"] + (V - set["vocab"]) * C * (set["tied_head"] == "true" ? 1 : 2)

    is_pure = set["master_dtype"] == "bf16"
    expect("weights", e * P, 1e-3)
    if (e == 2 && !is_pure) expect("master", 4 * P, 1e-3)
    expect("grads", (set["grad_dtype"] == "bf16" ? 2 : 4) * P, 1e-3)
    expect("optim", (set["optim_dtype"] == "8bit" ? 2.03125 : set["optim_dtype"] == "bf16" ? 4 : 8) * P, 1e-3)
    if (set["predictor"] == "outer") {
        s = is_pure ? 2 : 4
        tail = set["tail_share"] > 0 ? 4 : 0
        expect("predictor", (2 * s + tail) * P, 1e-3)
        expect("snapshot", s * P, 1e-3)
    }
    expect("activations", N * (L * (e * C + layer()) + e * C), 1e-3)
    # The head: a piece of logits, the normed stream, its gradient, the stream before it.
    head = N / set["loss_chunks"] * V * e + N * (3 * e * C + 4) + 32 * 1048576
    if (set["predictor"] == "none") expect("workspace", head, 0.04)
}

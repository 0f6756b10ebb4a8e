# formulas.awk: the formulas of docs/memory.md, held against a plan.
#
#   awk -v name=WHAT [-v shows=1] -f formulas.awk CONFIG PLAN
#
# CONFIG is what --print-config prints, PLAN the values of --plan --json, a line each (tests/cli/json.awk).
# Prints a line for each class whose planned bytes are not those of the formula, or, with shows, all of them
# side by side. What the planner chose (micro-batch, recomputation, pieces, rings) is taken from the plan.

FILENAME == ARGV[1] {
    if ($2 != "=") next
    gsub(/[";]/, "", $3)
    set[$1] = $3 ~ /^[0-9.]+$/ ? $3 + 0 : $3
    next
}
{ sub(/^\./, "", $1); plan[$1] = $2 }

function choice(what) { return plan["choices." what] }

# Rows of the vocabulary as they lie in memory.
function padded(v) { return v < 1024 ? v : int((v + 63) / 64) * 64 }

# Bytes that one token leaves behind in a layer, beside the stream that enters it.
function kept(level,   norms, attention, mlp, rest) {
    norms = 2 * e * C + (is_gated ? 0 : e * F)
    attention = e * (Q + A) + 4 * H + (set["qk_norm"] == "true" ? e * Q + 4 * (H + K) : 0)
    mlp = e * F * (is_gated ? 2 : 1)
    rest = e * C + (set["norm"] == "rmsnorm" ? 8 : 16)
    if (level == "all") return 0
    if (level == "norm") return attention + mlp + rest
    if (level == "attention") return mlp + rest
    if (level == "mlp") return attention + rest
    return norms + attention + mlp + rest
}

function activations(   checkpointed) {
    checkpointed = choice("recompute_layers") > 0 ? choice("recompute_layers") : L
    return N * (L * e * C + checkpointed * kept(choice("recompute")) + (L - checkpointed) * kept("none") + e * C)
}

# Elements of a class in its own place: layers that stay on the device are in its ring.
function elsewhere(class) { return choice(class "_place") != "device" ? choice("resident_units") : 0 }
function elements(class) { return P - elsewhere(class) * block }
function state(class, size,   stay) {
    stay = elsewhere(class)
    expect(class, stay ? size " (P - " stay " layers)" : size " P", size * elements(class), 1e-3)
}

# A class that lives elsewhere: buffers for some layers, one for embedding and head, layers that stay.
function ring(place, size) {
    if (place == "device") return 0
    return size * ((choice("ring_depth") + choice("resident_units")) * block + V * C)
}

function rings(   sum) {
    sum = ring(choice("weights_place"), weight_size) + ring(choice("grads_place"), grad_size)
    sum += ring(choice("optim_place"), optim_size)
    return has_master ? sum + ring(choice("master_place"), 4) : sum
}

# A piece of logits, the normed stream, its gradient, the stream before it; products' own memory.
function head() { return N / choice("loss_chunks") * V * e + N * (3 * e * C + 4) + 32 * 1048576 }

function gib(bytes) { return bytes / 1073741824 }

# Tensors begin at multiples of 256 bytes, small ones stay in fp32, and ops of wide models want more than
# 32 MiB for themselves: the plan may be larger by `allowed`; less by the small tensors of layers that stay.
function expect(class, formula, bytes, allowed,   got) {
    got = plan["phases.full.classes." class ".bytes"] + 0
    if (shows) printf "  %-12s %-34s %7.3f %7.3f GiB\n", class, formula, gib(bytes), gib(got)
    if (got >= bytes * (elsewhere(class) ? 0.9999 : 0.999999) && got <= bytes * (1 + allowed)) return
    printf "%s: %s is %.0f in the plan, %.0f by the formula\n", name, class, got, bytes
    wrong = 1
}

function read_shape() {
    C = set["width"]; H = set["heads"]; L = set["layers"]; V = padded(set["vocab"])
    K = set["kv_heads"] > 0 ? set["kv_heads"] : H
    D = set["head_size"] > 0 ? set["head_size"] : C / H
    F = set["mlp_width"] > 0 ? set["mlp_width"] : 4 * C
    is_gated = set["activation"] == "swiglu"
    Q = (H + 2 * K) * D; A = H * D
    P = plan["parameters"] + (V - set["vocab"]) * C * (set["tied_head"] == "true" ? 1 : 2)
    block = Q * C + A * C + C * F * (is_gated ? 3 : 2)
    N = choice("batch_size") * set["seq_len"]
}

function read_types(   optim) {
    weight_size = plan["phases.full.classes.weights.dtype"] == "fp32" ? 4 : 2
    has_master = ("phases.full.classes.master.bytes" in plan)
    e = weight_size
    if (set["predictor"] != "none" && set["precision_correct"] == "fp32") e = 4
    grad_size = set["grad_dtype"] == "bf16" ? 2 : 4
    optim = plan["phases.full.classes.optim.dtype"]
    optim_size = optim == "u8" ? 2 * (1 + 4 / 256) : optim == "bf16" ? 4 : 8
    slot_size = has_master || weight_size == 4 ? 4 : 2
}

END {
    read_shape()
    read_types()
    if (shows) {
        printf "P = %.0f parameters in memory, %.0f in a layer; N = %d tokens in a micro-batch\n", P, block, N
        printf "  %-12s %-34s %7s %7s\n", "class", "", "formula", "plan"
    }
    state("weights", weight_size)
    if (has_master) state("master", 4)
    state("grads", grad_size)
    state("optim", optim_size)
    if (set["predictor"] == "outer") {
        tail = set["tail_share"] > 0 ? 4 : 0
        expect("predictor", 2 * slot_size + tail " P", (2 * slot_size + tail) * P, 1e-3)
        expect("snapshot", slot_size " P", slot_size * P, 1e-3)
    }
    expect("activations", "N (layers + 1 stream)", activations(), 1e-3)
    expect("workspace", "rings + head", rings() + head(), 0.045)
    exit wrong
}

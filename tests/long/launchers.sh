#!/usr/bin/env bash
# The launchers of others start ranks: PyTorch's torchrun, and srun of a Slurm with this machine as its only node.
#
# torchrun is $HYBRID_TORCHRUN, else the one in PATH. Slurm needs root and Debian's packages slurmctld, slurmd,
# slurm-client and munge; its daemons run in a folder of the test and end with it. What is not there is left out
# with a line. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bin="${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-launchers-XXXXXX")"
daemons=()
trap '[ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2> /dev/null; wait; rm -rf "$scratch"' EXIT
passed=0
failed=0
torchrun="${HYBRID_TORCHRUN:-$(command -v torchrun)}"
export XDG_CONFIG_HOME="$scratch/config"
unset HYBRID_SECRET
tiny=("$bin/hybrid-train" --model nano --layers 1 --width 32 --heads 2 --seq-len 32 --batch-size 2 --steps 4
    --builtin-bytes 20000 --sample-tokens 0 --threads 1 --device cpu --overwrite --out "$scratch/out")

check() { # check NAME: the function of that name must succeed
    if "$1" > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        tail -n 30 "$scratch/log" | sed 's/^/      /'
    fi
}

# The run that the last launcher started had two ranks.
had_two_ranks() { grep -q '"rank_seconds": *\[[^],]*,[^],]*\]' "$scratch/out/metrics.jsonl"; }

torchrun_starts_ranks() {
    timeout 120 "$torchrun" --standalone --no-python --nproc-per-node 2 "${tiny[@]}" && had_two_ranks
}

torchrun_with_an_address_uses_the_users_secret() {
    local address
    address=$(hostname -I | cut -d ' ' -f 1)
    timeout 120 "$torchrun" --no-python --nproc-per-node 2 --master-addr "$address" --master-port 29417 "${tiny[@]}" &&
        had_two_ranks && [ "$(stat -c %a "$XDG_CONFIG_HOME/hybrid-train/rank-secret")" = 600 ]
}

srun_starts_ranks() { timeout 60 srun -n 2 "${tiny[@]}" && had_two_ranks; }

srun_passes_a_secret_on() {
    HYBRID_SECRET="a secret of this test" HYBRID_ADDRESS="$(hostname -I | cut -d ' ' -f 1):29437" \
        timeout 60 srun -n 2 "${tiny[@]}" && had_two_ranks
}

# A controller, a node and their authentication, with all files in the scratch folder.
start_slurm() {
    local at="$scratch/slurm" host
    host=$(hostname -s)
    mkdir -p "$at/state" "$at/spool" && chmod 755 "$scratch" "$at" || return
    head -c 128 /dev/urandom > "$at/munge.key" && chmod 600 "$at/munge.key"
    cat > "$at/slurm.conf" <<- CONF
		ClusterName=hybrid
		SlurmctldHost=$host
		SlurmUser=root
		AuthType=auth/munge
		AuthInfo=socket=$at/munge.socket
		CredType=cred/munge
		ProctrackType=proctrack/pgid
		TaskPlugin=task/none
		MpiDefault=none
		SlurmctldPort=29457
		SlurmdPort=29458
		SlurmctldPidFile=$at/slurmctld.pid
		SlurmdPidFile=$at/slurmd.pid
		StateSaveLocation=$at/state
		SlurmdSpoolDir=$at/spool
		SelectType=select/linear
		NodeName=$host CPUs=$(nproc) State=UNKNOWN
		PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
	CONF
    export SLURM_CONF="$at/slurm.conf"
    munged -F --force --socket="$at/munge.socket" --key-file="$at/munge.key" --pid-file="$at/munge.pid" \
        --log-file="$at/munge.log" --seed-file="$at/munge.seed" > "$at/munged.out" 2>&1 &
    daemons+=($!)
    sleep 1
    slurmctld -D > "$at/slurmctld.out" 2>&1 &
    daemons+=($!)
    slurmd -D > "$at/slurmd.out" 2>&1 &
    daemons+=($!)
    for _ in {1..30}; do
        sinfo -h -o %T 2> /dev/null | grep -q idle && return
        sleep 0.5
    done
    tail -n 5 "$at"/*.out
    return 1
}

if [ -n "$torchrun" ]; then
    check torchrun_starts_ranks
    check torchrun_with_an_address_uses_the_users_secret
else
    echo "left out: there is no torchrun"
fi
if [ "$(id -u)" = 0 ] && command -v slurmctld slurmd srun munged > /dev/null; then
    if start_slurm > "$scratch/slurm.log" 2>&1; then
        check srun_starts_ranks
        check srun_passes_a_secret_on
    else
        echo "left out: Slurm does not start here: $(tail -n 1 "$scratch/slurm.log")"
    fi
else
    echo "left out: Slurm needs root and the packages slurmctld, slurmd, slurm-client and munge"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

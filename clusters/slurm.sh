#!/bin/bash
# A Ray cluster for the time of one Slurm job, and a sweep on it:
#   sbatch clusters/slurm.sh sweep tune_configs/dirichlet_grid.yaml
#
# The environment with rayfl, the folder of the submission and --out lie on storage that all nodes share.
#SBATCH --job-name=rayfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=04:00:00
# A minute before the time is up the sweep is told to end in order; submitted again, it goes on.
#SBATCH --signal=B:TERM@60
set -euo pipefail

# shellcheck disable=SC1091
source "${RAYFL_VENV:-$HOME/rayfl-venv}/bin/activate"

# Jobs of others may share the nodes: every job has ports, a folder and a token of its own.
port=$((20000 + SLURM_JOB_ID % 20000))
temp="/tmp/ray-$SLURM_JOB_ID"
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(head -n 1 <<<"$nodes")
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_PER_TASK:-0}
gpus=${gpus##*:}

srun --nodes=1 --ntasks=1 --nodelist="$head" --cpus-per-task="$cpus" \
  ray start --head --block --node-ip-address="$address" --port="$port" --temp-dir="$temp" \
  --num-cpus="$cpus" --num-gpus="$gpus" --include-dashboard=false --disable-usage-stats &
for node in $(tail -n +2 <<<"$nodes"); do
  srun --nodes=1 --ntasks=1 --nodelist="$node" --cpus-per-task="$cpus" \
    ray start --block --address="$address:$port" --temp-dir="$temp" \
    --num-cpus="$cpus" --num-gpus="$gpus" --disable-usage-stats &
done

export RAY_ADDRESS="$address:$port"
python - "$SLURM_JOB_NUM_NODES" <<'PYTHON'
import sys
import time

import ray

wanted, deadline = int(sys.argv[1]), time.monotonic() + 180
while True:
    try:
        ray.init(logging_level="ERROR")
        there = sum(node["Alive"] for node in ray.nodes())
    except ConnectionError:
        there = 0
    ray.shutdown()
    if there == wanted:
        break
    if time.monotonic() > deadline:
        sys.exit(f"{there} of {wanted} nodes have joined within three minutes")
    time.sleep(2)
PYTHON

# In the background, so that the signal reaches the trap while the sweep goes on; with job control, because
# without it what runs in the background never hears SIGINT.
set -m
python -m rayfl "$@" &
sweep=$!
trap 'kill -INT "$sweep"' INT TERM
code=0
wait "$sweep" || code=$?
if kill -0 "$sweep" 2>/dev/null; then
  code=0
  wait "$sweep" || code=$?
fi
exit "$code"

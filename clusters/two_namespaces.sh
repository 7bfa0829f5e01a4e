#!/bin/bash
# Two Ray nodes with addresses of their own on one Linux machine, and a command of rayfl on them. As root:
#   clusters/two_namespaces.sh run fedavg.digits fleet.kind=ray fleet.client_actors=2
#
# Each node lives in a network namespace; a pair of virtual interfaces is all that joins them.
set -euo pipefail

python=${PYTHON:-python}
ray="$(dirname "$("$python" -c 'import sys; print(sys.executable)')")/ray"
temp=$(mktemp -d /tmp/rns.XXXXXX)
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

# Only what runs in the two namespaces is ended: another Ray on this machine is left alone.
clean_up() {
  for name in rayfl-head rayfl-worker; do
    ip netns pids "$name" 2>/dev/null | xargs --no-run-if-empty kill -9
    ip netns delete "$name" 2>/dev/null || true
  done
  rm -rf "$temp"
}
trap clean_up EXIT

ip netns add rayfl-head
ip netns add rayfl-worker
ip link add link0 netns rayfl-head type veth peer name link0 netns rayfl-worker
for node in "rayfl-head 10.77.0.1" "rayfl-worker 10.77.0.2"; do
  read -r name address <<<"$node"
  ip -n "$name" address add "$address/24" dev link0
  ip -n "$name" link set link0 up
  ip -n "$name" link set lo up
done

ip netns exec rayfl-head "$ray" start --head --node-ip-address=10.77.0.1 --port=6379 \
  --num-cpus=1 --object-store-memory=200000000 --temp-dir="$temp/head" --disable-usage-stats >"$temp/head.log"
ip netns exec rayfl-worker "$ray" start --address=10.77.0.1:6379 --node-ip-address=10.77.0.2 \
  --num-cpus=1 --object-store-memory=200000000 --temp-dir="$temp/worker" --disable-usage-stats \
  >"$temp/worker.log"

export RAY_ADDRESS=10.77.0.1:6379
ip netns exec rayfl-head "$python" - <<'PYTHON'
import ray

ray.init(logging_level="ERROR")
for node in ray.nodes():
    print(node["NodeManagerAddress"], "alive" if node["Alive"] else "dead", node["Resources"].get("CPU"), "CPU")
PYTHON
ip netns exec rayfl-head "$python" -m rayfl "$@"

#!/usr/bin/env bash
# Client-visible state exists only in the log: after every kind of call all six processes are killed at once and
# started again, and every queue and every family of the state has the digest that it had before. (The log itself goes
# on: elections and the digests' own marks are entries.)
#   deploy/restart-test.sh BIN
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${1:?usage: deploy/restart-test.sh BIN}
work=$(mktemp -d)
cluster() { bash deploy/cluster.sh "$@" --dir "$work/cluster"; }
trap 'cluster down --purge >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
admin() { "$bin/mqadmin" "$@"; }

digest() { admin digest --broker-group broker-a --no-name-servers --json --parts >"$work/$1"; }

# Both files: [{"equal": true, "members": [{"parts": [{"name", "count", "digest"}]}]}]
compare() {
  python3 - "$1" "$work/before" "$work/after" <<'PY'
import json
import sys

def parts(path):
    (group,) = json.load(open(path))
    assert group["equal"], group
    assert len(group["members"]) == 3, group
    return {p["name"]: (p["count"], p["digest"]) for p in group["members"][0]["parts"] if p["name"] != "log"}

call, before, after = sys.argv[1], parts(sys.argv[2]), parts(sys.argv[3])
assert before, "no parts to compare"
differ = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
print(f"{'not ok' if differ else 'ok'} - {call}: {len(before)} parts equal after a restart of all" + f", but {differ}" * bool(differ))
sys.exit(bool(differ))
PY
}

restarted() {
  digest before
  local node jobs=()
  for node in b1 b2 b3 n1 n2 n3; do
    cluster kill "$node" >/dev/null &
    jobs+=($!)
  done
  wait "${jobs[@]}"
  cluster start all >/dev/null
  digest after
  compare "$1"
}

cluster up --port-base auto --timers test --bin "$bin" >/dev/null
NAMESRV_ADDR=$(cluster endpoints | sed -n 's/^NAMES=//p')
export NAMESRV_ADDR
restarted "nothing yet"
admin topic create --topic orders --queues 4 >/dev/null && restarted "topic created"
admin group create --group readers >/dev/null && restarted "group created"
seq 1 200 | admin send --topic orders >/dev/null && restarted "sent"
admin receive --topic orders --group readers --max 50 --no-ack --invisible 60s >/dev/null && restarted "received"
admin receive --topic orders --group readers --max 50 >/dev/null && restarted "received and acknowledged"
admin topic create --topic orders --queues 8 >/dev/null && restarted "topic changed"
admin topic create --topic gone >/dev/null && admin topic delete --topic gone >/dev/null && restarted "topic deleted"
admin group delete --group readers >/dev/null && restarted "group deleted"

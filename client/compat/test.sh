#!/usr/bin/env bash
# The official Python client against a three-node cluster:  client/compat/test.sh BINARIES [CELLS]
# 1. one producer and one simple consumer, before and after a SIGKILL of the leader, without a restart of either;
# 2. the cells of the matrix that this version serves.
# The client is installed into COMPAT_CACHE (default ~/.cache/rocketmq-compat), outside of the checkout.
set -euo pipefail
bin=${1:?usage: client/compat/test.sh BINARIES [CELLS]}
"$(dirname "${BASH_SOURCE[0]}")/run.sh" python --install >/dev/null
readonly CELLS=${2:-send_sync,send_async,tag_filter,retry,change_invisible,restart,shared_group,two_groups,empty_receive,roundtrip,big_body,unknown_topic}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cluster=$here/../../deploy/cluster.sh
work=$(mktemp -d)
dir=$work/cluster

finish() {
  local status=$?
  "$cluster" down --dir "$dir" >/dev/null 2>&1 || true
  if [ $status -eq 0 ]; then
    rm -rf "$work"
  else
    tail -n 20 "$work/client.log" >&2 2>/dev/null || true
    echo "kept: $work" >&2
  fi
}
trap finish EXIT

"$cluster" up --dir "$dir" --bin "$bin" --port-base auto --timers test >"$work/up.log" || { cat "$work/up.log"; exit 1; }
endpoints=$("$cluster" endpoints --dir "$dir")
clients=$(sed -n 's/^CLIENTS=//p' <<<"$endpoints")
names=$(sed -n 's/^NAMES=//p' <<<"$endpoints")

# Only the Python client's rows: the others are for runs with the other clients.
for table in topics groups; do
  awk -F'\t' 'NR == 1 || $1 ~ /^compat-python-/' "$here/$table.tsv" >"$work/$table.tsv"
  "$bin/mqadmin" --namesrv "$names" "${table%s}" create --from "$work/$table.tsv" >"$work/$table.log"
  echo "$table: $(wc -l <"$work/$table.log") created"
done

# The client prints stack traces about every call that meets a dead node; they are shown when something fails.
export COMPAT_RUN_ID=${COMPAT_RUN_ID:-$(date +%s)}
# A node that survives knows the way: the client is given one access point, not the killed one.
leader=$("$bin/mqadmin" --namesrv "$names" status --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["broker_groups"][0]["leader"])')
survivor=$(tr , '\n' <<<"$clients" | awk -v leader="${leader#b}" 'NR != leader' | head -n 1)
echo "leader $leader will be killed; the client knows $survivor"
"$here/run.sh" python "$survivor" leader_kill "$cluster kill $leader --dir $dir" 2>"$work/client.log"
"$cluster" start "$leader" --dir "$dir"

"$here/run.sh" python "$survivor" "$CELLS" 2>>"$work/client.log" | tee "$work/cells.jsonl"
python3 - "$work/cells.jsonl" "$CELLS" <<'PYTHON'
import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
passed = [row["cell"] for row in rows if row.get("result") == "pass"]
missing = sorted(set(sys.argv[2].split(",")) - set(passed))
print(f"compat: {len(passed)} cells passed" + (f", not passed: {' '.join(missing)}" if missing else ""))
sys.exit(1 if missing else 0)
PYTHON

#!/usr/bin/env bash
# Tests of deploy/cluster.sh against a real cluster:  deploy/test.sh BINARIES
set -euo pipefail
bin=${1:?usage: deploy/test.sh BINARIES}
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cluster.sh
work=$(mktemp -d)
dir=$work/cluster
passed=0
decoys=()

cluster() { "$script" "$@" --dir "$dir"; }
finish() {
  local status=$?
  cluster down >/dev/null 2>&1 || true
  if [ ${#decoys[@]} -gt 0 ]; then kill "${decoys[@]}" 2>/dev/null || true; fi
  if [ $status -ne 0 ]; then
    echo "FAILED after $passed checks; kept: $work" >&2
    tail -n 8 "$dir"/*/log >&2 2>/dev/null || true
  else
    rm -rf "$work"
  fi
}
trap finish EXIT

ok() { passed=$((passed + 1)); echo "ok $passed - $*"; }
refuse() { echo "not ok - $*" >&2; exit 1; }

# expect CODE TEXT COMMAND...: the exit status, and a text somewhere in the output
expect() {
  local want=$1 text=$2 got=0 output
  shift 2
  output=$("$@" 2>&1) || got=$?
  [ "$got" -eq "$want" ] || refuse "exit status $got instead of $want from: $*"$'\n'"$output"
  case $output in *"$text"*) ;; *) refuse "no '$text' in the output of: $*"$'\n'"$output" ;; esac
}

pid_of() { cut -d' ' -f1 "$dir/$1/pid"; }
state_of() { sed 's/.*) //' "/proc/$1/stat" | cut -c1; }

# ---- wrong use ----
expect 2 "unknown command 'upp'" cluster upp
expect 2 "unknown option '--nodez'" cluster up --nodez
expect 2 "--timers takes lan or test" cluster up --timers wan
expect 2 "--port-base takes a number" cluster up --port-base x1
expect 2 "--signal takes KILL, STOP, CONT or TERM" cluster kill b1 --signal HUP
expect 3 "no cluster in" cluster status
expect 3 "no binaries found" env -u CARGO_TARGET_DIR HOME="$work" XDG_CACHE_HOME="$work" \
  bash -c "cp '$script' '$work/' && '$work/cluster.sh' up --dir '$dir'"
[ ! -e "$dir" ] || refuse "wrong use left a folder"
mkdir "$work/foreign" && touch "$work/foreign/file"
expect 1 "neither empty nor the folder of a cluster" "$script" up --dir "$work/foreign" --bin "$bin"
ok "wrong use is named and changes nothing"

# ---- decoys: processes of the same name, one of them on a recorded pid ----
cp "$(command -v sleep)" "$work/mqbroker"
"$work/mqbroker" 600 &
decoys+=($!)
cp "$(command -v sleep)" "$work/mqnamesrv"
"$work/mqnamesrv" 600 &
decoys+=($!)

# ---- life of a cluster ----
expect 0 "running" cluster up --bin "$bin" --port-base auto --timers test
ok "up: six processes, leaders, registered"
expect 0 "b3" cluster status
expect 0 '"state":"running"' cluster status --json
cluster status --json | python3 -c 'import json, sys
status = json.load(sys.stdin)
assert len(status["nodes"]) == 6 and status["cluster"], status'
ok "status: table and JSON"
names=$(sed -n 's/^api_listen *= *"\(.*\)"/\1/p' "$dir"/n?/*.toml | paste -sd ';')
admin() { "$bin/mqadmin" --namesrv "$names" "$@"; }
expect 0 "s/k: revision 1" admin kv put -s s -k k -v one --expect 0
expect 1 'has revision 1, value "one"' admin kv put -s s -k k -v two --expect 0
expect 0 "revision 2" admin updateKvConfig -s s -k k -v two
expect 0 "two" admin kv get -s s -k k
expect 0 '"revision":2' admin --json kv list
timeout 30 "$bin/mqadmin" --namesrv "$names" kv watch --after 1 >"$work/watched" &
watcher=$!
expect 0 "revision 3" admin deleteKvConfig -s s -k k --expect 2
expect 3 "no key k" admin kv get -s s -k k
for _ in $(seq 100); do [ "$(wc -l <"$work/watched")" -ge 2 ] && break; sleep 0.1; done
kill $watcher
[ "$(cat "$work/watched")" = $'2 s/k = two\n3 s/k deleted' ] || refuse "watched: $(cat "$work/watched")"
ok "settings: conditions, revisions, watch"
before=$(pid_of b1)
expect 0 "" cluster up
[ "$before" = "$(pid_of b1)" ] || refuse "a second up started b1 again"
ok "up again changes nothing"

expect 0 "b2: SIGSTOP sent" cluster kill b2 --signal STOP
[ "$(state_of "$(pid_of b2)")" = T ] || refuse "b2 is not stopped"
expect 0 "b2: SIGCONT sent" cluster kill b2 --signal CONT
[ "$(state_of "$(pid_of b2)")" != T ] || refuse "b2 is still stopped"
ok "kill --signal STOP and CONT"

old=$(pid_of b3)
expect 0 "b3: SIGKILL sent" cluster kill b3
while [ -e "/proc/$old" ]; do sleep 0.05; done
expect 3 "b3 is not running" cluster kill b3
expect 10 "dead" cluster status
ok "kill: the node is gone, and status says 10"

# Its pid now belongs to somebody else, as the kernel may do it.
printf '%s %s\n' "${decoys[0]}" 1 >"$dir/b3/pid"
expect 3 "b3 is not running" cluster kill b3
kill -0 "${decoys[0]}" || refuse "the decoy was killed through a stale pid"
ok "a reused pid is not mistaken for the node"

expect 0 "" cluster start b3
[ "$(pid_of b3)" != "$old" ] || refuse "b3 was not started"
expect 0 "running" cluster status
expect 0 "" cluster restart n1
expect 0 "running" cluster status
ok "start and restart wait until the cluster is whole"
expect 3 "no node 'b9'" cluster start b9
expect 0 "" cluster logs b1
ok "logs"

cluster kill b1 --signal STOP >/dev/null
pids=$(cat "$dir"/*/pid | cut -d' ' -f1)
expect 0 "" cluster down
for pid in $pids; do
  if [ -e "/proc/$pid" ] && [ "$(state_of "$pid")" != Z ]; then refuse "process $pid is left"; fi
done
ok "down: nothing is left, a stopped process included"
expect 10 "dead" bash -c "'$script' status --dir '$dir'; s=\$?; [ \$s -eq 4 ] && exit 10; exit \$s"
expect 0 "running" cluster up
ok "up after down: the same data, leaders again"
expect 0 "" cluster down --purge
[ ! -e "$dir" ] || refuse "down --purge left the folder"
for decoy in "${decoys[@]}"; do kill -0 "$decoy" || refuse "a decoy of the same name was killed"; done
ok "down --purge; the decoys survive"
echo "deploy: $passed checks passed"

#!/usr/bin/env bash
# RB-25: all six processes are restarted one after the other, leaders last, under load: no send fails, every message is
# received exactly once, also those that were acknowledged before.
#   deploy/rolling-test.sh BIN
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${1:?usage: deploy/rolling-test.sh BIN}
work=$(mktemp -d)
cluster() { bash deploy/cluster.sh "$@" --dir "$work/cluster"; }
trap 'cluster down --purge >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
admin() { "$bin/mqadmin" "$@"; }
check() { if "${@:2}"; then echo "ok - $1"; else echo "not ok - $1"; exit 1; fi; }

readonly MESSAGES=1300 EARLY=200
cluster up --port-base auto --timers test --bin "$bin" >/dev/null
NAMESRV_ADDR=$(cluster endpoints | sed -n 's/^NAMES=//p')
export NAMESRV_ADDR
pids() { cat "$work"/cluster/[nb]?/pid | sort; }
admin topic create --topic orders --queues 4 >/dev/null
admin group create --group readers >/dev/null
seq 1 $EARLY | admin send --topic orders >/dev/null
admin receive --topic orders --group readers --max $EARLY >"$work/early"

leader() { admin status | awk -F '  +' -v l="$1" 'substr($2, 1, 1) == l && $3 ~ /\*/ { print $2 }'; }
name_leader=$(leader n) broker_leader=$(leader b)
pids >"$work/pids-before"
seq $((EARLY + 1)) $MESSAGES >"$work/lines"
admin send --topic orders --rate 100 "$work/lines" >"$work/sent" 2>&1 &
sending=$!
cluster rolling-restart >"$work/restarts"
sent=0
if ! kill -0 $sending 2>/dev/null; then echo "not ok - the load ended before the restarts did"; exit 1; fi
wait $sending || sent=$?
pids >"$work/pids-after"
check "no send failed: $(tail -n 1 "$work/sent")" test $sent -eq 0
check "six restarts" test "$(wc -l <"$work/restarts")" -eq 6
check "leaders last ($name_leader, $broker_leader)" test \
  "$(sed -n '3p;6p' "$work/restarts" | tr '\n' ' ')" = "$name_leader: restart $broker_leader: restart "
check "no old process is left" test -z "$(comm -12 "$work/pids-before" "$work/pids-after")"
admin receive --topic orders --group readers >"$work/late"
# The body is the last word of a line.
cat "$work/early" "$work/late" | awk '{ print $NF }' | sort -n >"$work/received"
seq 1 $MESSAGES >"$work/expected"
check "each of $MESSAGES messages came exactly once" cmp "$work/expected" "$work/received"

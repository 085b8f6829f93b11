"""Sends and receives through one producer and one simple consumer while the leader is killed; neither is restarted."""
import argparse
import json
import os
import subprocess
import sys
import threading
import time

from harness import Cell, VERSION, check, error_text

MESSAGES = 200
KILL_AFTER = 70
SEND_LIMIT_S = 45
RECEIVE_LIMIT_S = 60
INVISIBLE_S = 15


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--endpoint", required=True)
    p.add_argument("--kill", required=True, help="command that kills the leader")
    p.add_argument("--run-id", default=str(int(time.time())))
    p.add_argument("--tls", action="store_true")
    return p.parse_args()


class Run:
    def __init__(self, args):
        self.args = args
        self.cell = Cell(args, "leader-kill")
        self.topic = self.cell.topic("failover")
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.confirmed, self.errors = {}, {}
        # An application that sends again after its client gave up may store a line twice: two messages, two ids.
        self.received, self.acked, self.acked_ids, self.again = {}, {}, set(), []
        self.killed_at = None

    def note(self, what, e):
        with self.lock:
            text = f"{what} {error_text(e)[:160]}"
            self.errors[text] = self.errors.get(text, 0) + 1

    def consume(self, consumer):
        while not self.stop.is_set():
            try:
                messages = consumer.receive(32, INVISIBLE_S) or []
            except Exception as e:
                self.note("receive", e)
                time.sleep(0.1)
                continue
            for m in messages:
                key = self.cell.seq(m)
                with self.lock:
                    if m.message_id in self.acked_ids:
                        self.again.append(key)
                    self.received[key] = self.received.get(key, 0) + 1
                try:
                    consumer.ack(m)
                    with self.lock:
                        self.acked[key] = time.time()  # None: a message of another run, out of the way now
                        self.acked_ids.add(m.message_id)
                except Exception as e:
                    self.note("ack", e)

    def send(self, producer, n):
        """The client's own attempts; when they are used up, the application asks it again, 45 s at most."""
        key, end = f"{n:04d}", time.time() + SEND_LIMIT_S
        while True:
            try:
                producer.send(self.cell.message(self.topic, key))
                break
            except Exception as e:
                self.note("send", e)
                check(time.time() < end, f"message {key} was not confirmed within {SEND_LIMIT_S} s: {error_text(e)}")
                time.sleep(0.1)
        with self.lock:
            self.confirmed[key] = time.time()

    def kill(self):
        check(len(self.acked) > 0, "nothing was received and acknowledged before the kill")
        done = subprocess.run(self.args.kill, shell=True, capture_output=True, text=True, timeout=30)
        check(done.returncode == 0, f"the kill failed: {done.stdout} {done.stderr}")
        self.killed_at = time.time()

    def all_acked(self):
        with self.lock:
            return all(key in self.acked for key in self.confirmed)

    def work(self):
        consumer = self.cell.simple(self.cell.group("failover-simple"), self.topic, await_s=2)
        threading.Thread(target=self.consume, args=(consumer,), daemon=True).start()
        producer = self.cell.producer(self.topic)
        killer = None
        for n in range(MESSAGES):
            self.send(producer, n)
            time.sleep(0.005)
            if n == KILL_AFTER - 20:
                self.wait(lambda: len(self.acked) >= 10, "nothing is received before the kill")
            if n == KILL_AFTER:
                killer = threading.Thread(target=self.kill)
                killer.start()
        killer.join()
        check(self.killed_at is not None, "the leader was not killed")
        after = [key for key, at in self.confirmed.items() if at > self.killed_at]
        check(len(after) >= 20, f"only {len(after)} sends were confirmed after the kill")
        self.wait(self.all_acked, "not everything was received and acknowledged")
        # What is acknowledged must not come again, also not after its invisible time.
        time.sleep(INVISIBLE_S + 3)
        self.stop.set()
        check(not self.again, f"delivered again after the ack was answered OK: {sorted(self.again)[:10]}")
        times = sorted(self.confirmed.values())
        gap = max(b - a for a, b in zip(times, times[1:]))
        return {"confirmed": len(self.confirmed), "confirmed_after_kill": len(after), "longest_gap_s": round(gap, 3),
                "stored_or_delivered_twice": sum(1 for n in self.received.values() if n > 1), "errors": self.errors}

    def wait(self, condition, text):
        end = time.time() + RECEIVE_LIMIT_S
        while not condition():
            check(time.time() < end, f"{text} within {RECEIVE_LIMIT_S} s: {len(self.acked)} of {len(self.confirmed)}; "
                  f"errors {self.errors}")
            time.sleep(0.05)


def main():
    run, start = Run(arguments()), time.time()
    try:
        result, detail = "pass", run.work()
    except Exception as e:
        result, detail = "fail", {"error": str(e) if isinstance(e, AssertionError) else error_text(e)}
    print(json.dumps({"client": "python", "version": VERSION, "program": "leader_kill", "result": result,
                      "detail": detail, "seconds": round(time.time() - start, 2)}), flush=True)
    sys.stdout.flush()
    closer = threading.Thread(target=run.cell.close_all, daemon=True)
    closer.start()
    closer.join(5)
    os._exit(0 if result == "pass" else 1)


main()

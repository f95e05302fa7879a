"""A program that knows the published checkpoint guide and nothing else.

It uses the two paths by name, sends and understands three messages, reads them in a thread that
never reconnects, and keeps one request in a variable. Programs like this one exist and must work.
"""

import json
import os
import socket
import threading
import time

STATE = "/nodus/state/progress.json"
STEPS = int(os.environ.get("STEPS", "120"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "1"))
SAVE_EVERY = 20

asked = threading.Event()
connection = None
asked_seq = None


def save(step):
    os.makedirs(os.path.dirname(STATE), exist_ok=True)
    with open(STATE + ".tmp", "w") as staged:
        json.dump({"step": step, "name": os.environ.get("NAME", "")}, staged)
    os.replace(STATE + ".tmp", STATE)


def listen():
    global connection, asked_seq
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect("/run/nodus/events.sock")
    except OSError:
        return
    connection.sendall(b'{"type": "checkpoint.subscribe"}\n')
    for line in connection.makefile("r"):
        message = json.loads(line)
        if message.get("type") == "checkpoint.request":
            asked_seq = message["seq"]
            asked.set()


def ack():
    connection.sendall((json.dumps({"type": "checkpoint.ack", "seq": asked_seq}) + "\n").encode())
    asked.clear()


def main():
    start = 0
    if os.path.exists(STATE):
        with open(STATE) as file:
            start = json.load(file)["step"]
        print(f"resumed from step {start}", flush=True)
    threading.Thread(target=listen, daemon=True).start()
    for step in range(start + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        print(f"step {step}/{STEPS}", flush=True)
        if asked.is_set():
            save(step)
            ack()
        elif step % SAVE_EVERY == 0:
            save(step)
    print("training complete", flush=True)


if __name__ == "__main__":
    main()

"""A training loop that keeps its progress across suspends, crashes and lost capacity.

It needs only the standard library. All it has to do for Nodus is in two places: `save()` writes
the state so that it is whole at every moment, and the loop saves and answers when Nodus asks.
Outside Nodus nobody asks, and the same program runs as it is.
"""

import json
import os
import queue
import socket
import threading
import time
from pathlib import Path

STATE_DIR = Path(os.environ.get("NODUS_STATE_DIR", "/nodus/state"))
STATE = STATE_DIR / "progress.json"
EVENTS = os.environ.get("NODUS_EVENTS_SOCKET", "/run/nodus/events.sock")
STEPS = int(os.environ.get("STEPS", "120"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "1"))
SAVE_EVERY = 20  # steps between the saves that nobody asks for
RECONNECT_SECONDS = 1.0

requests = queue.SimpleQueue()  # (seq, connection) of each checkpoint that waits for us


def save(step):
    """Write beside the old state and rename over it: a half-written file is never in place."""
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    staged = STATE.with_suffix(".tmp")
    staged.write_text(json.dumps({"step": step}))
    os.replace(staged, STATE)


def load():
    """Return the last step that was saved; 0 on a first start."""
    try:
        step = json.loads(STATE.read_text())["step"]
    except FileNotFoundError:
        return 0
    print(f"resumed from step {step}", flush=True)
    return step


def send(connection, message):
    """Send one message: one JSON object on a line."""
    connection.sendall((json.dumps(message) + "\n").encode())


def subscribe():
    """Ask to be told before each checkpoint, and pass each request to the training loop."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(EVENTS)
        send(connection, {"type": "checkpoint.subscribe"})
        for line in connection.makefile("rb"):
            message = json.loads(line)
            if message.get("type") == "checkpoint.request":
                requests.put((message["seq"], connection))


def listen():
    """Stay subscribed. The agent may be restarted or upgraded under a running program."""
    while os.path.exists(EVENTS) or "NODUS_ATTEMPT" in os.environ:
        try:
            subscribe()
        except (OSError, ValueError):
            pass  # whatever ended the connection, the next one is as good as new
        time.sleep(RECONNECT_SECONDS)


def take_requests():
    """Return the requests that have come in, so that those after them wait for the next save."""
    return [requests.get() for _ in range(requests.qsize())]


def acknowledge(waiting):
    """Tell Nodus that the files in the state directory are complete."""
    for seq, connection in waiting:
        try:
            send(connection, {"type": "checkpoint.ack", "seq": seq})
        except OSError:
            pass  # the agent went away meanwhile; it asks again once we are back


def main():
    start = load()
    threading.Thread(target=listen, daemon=True).start()
    for step in range(start + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)  # stands for one step of work
        print(f"step {step}/{STEPS}", flush=True)
        waiting = take_requests()
        if waiting or step % SAVE_EVERY == 0:
            save(step)
        acknowledge(waiting)
    save(STEPS)
    print("training complete", flush=True)


if __name__ == "__main__":
    main()

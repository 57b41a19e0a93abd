"""Functions in processes that are forked from one with the library imported.

Importing TensorFlow takes as long as a short run. A server imports it once and forks,
since a process that has run TensorFlow cannot be forked.
"""

import functools
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import ROOT


@functools.cache
def _server():
    command = [sys.executable, "-m", "tests.forked"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)


def _ask(**order):
    server = _server()
    print(json.dumps(order), file=server.stdin, flush=True)
    return json.loads(server.stdout.readline())


class Process:
    """A ``subprocess.Popen`` of a function, "module:name", with arguments of JSON.

    Its outputs go to one file. The process ends with what the function returns.
    """

    def __init__(self, function, environment=(), **arguments):
        handle, self._output = tempfile.mkstemp()
        os.close(handle)
        order = {"function": function, "arguments": arguments}
        order |= {"environment": dict(environment), "output": self._output}
        self.pid, self.returncode = _ask(start=order), None

    def poll(self):
        if self.returncode is None:
            self.returncode = _ask(poll=self.pid)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout):
        """Waits for the end; returns exit code (negative: a signal) and output."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"still running after {timeout} s")
            time.sleep(0.01)
        output = Path(self._output)
        text = output.read_text(errors="replace")
        output.unlink()
        return self.returncode, text


def _start(order):
    child = os.fork()
    if child:
        return child
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["environment"])
    function = pkgutil.resolve_name(order["function"])
    sys.exit(function(**order["arguments"]))


def _poll(child):
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _serve():
    for line in sys.stdin:
        order = json.loads(line)
        answer = _start(order["start"]) if "start" in order else _poll(order["poll"])
        print(json.dumps(answer), flush=True)
    # No run outlives the tests.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    from electra_tf.config import startup

    with startup.lightly():
        from electra_tf.runs import finetuning, pretraining  # noqa: F401
    _serve()

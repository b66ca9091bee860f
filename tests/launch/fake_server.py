"""A stand-in server for the launcher's tests: behaves as its own flags say."""

# ruff: noqa: T201

import http.server
import os
import signal
import subprocess
import sys
import threading
import time


def flag(name, default=None):
    found = default
    for index, word in enumerate(sys.argv):
        if word == name:
            found = sys.argv[index + 1]
        elif word.startswith(name + "="):
            found = word.split("=", 1)[1]
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    health = 200
    running = 0

    def do_GET(self):
        if self.path == "/metrics":
            running = f'vllm:num_requests_running{{engine="0"}} {Handler.running}'
            self._send(200, running + '\nvllm:num_requests_waiting{engine="0"} 0\n')
        elif self.path.startswith("/set/"):
            _, _, name, value = self.path.split("/")
            setattr(Handler, name, int(value))
            self._send(200, "ok")
        elif self.path == "/health":
            self._send(Handler.health, "")
        else:
            self._send(404, "")

    def _send(self, status, body):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def main():
    print("server starts", sys.argv[1:], flush=True)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "TRITON_PTXAS_PATH", "VLLM_AGENT_RUN_DIR", "VLLM_USE_DEEP_GEMM"):
        print(f"env {name}={os.environ.get(name)}", flush=True)
    if flag("--exit") is not None:
        time.sleep(float(flag("--exit-after", "0")))
        os._exit(int(flag("--exit")))
    if flag("--refuses") and flag(flag("--refuses")) is not None:
        print("error: unrecognized arguments", flush=True)
        os._exit(2)
    if flag("--grandchild"):
        code = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)"
        new = flag("--grandchild") == "session"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=new)
        print(f"grandchild {child.pid}", flush=True)
    if flag("--term") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif flag("--term") == "vllm":
        signal.signal(
            signal.SIGTERM,
            lambda *_: (print("[shutdown] API server: shutdown triggered", flush=True), os._exit(0)),
        )
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if flag("--flood"):
        threading.Thread(target=flood, args=(int(flag("--flood")),), daemon=True).start()
    if flag("--port"):
        http.server.ThreadingHTTPServer(("127.0.0.1", int(flag("--port"))), Handler).serve_forever()
    while True:
        time.sleep(60)


def say_goodbye(*_):
    os.write(1, b"[shutdown] API server: shutdown triggered\n")
    os._exit(0)


def flood(count):
    line = b"x" * 99 + b"\n"
    begun = time.monotonic()
    for _ in range(count // 100):
        os.write(1, line)
    print(f"flood done in {time.monotonic() - begun:.3f}", flush=True)


main()

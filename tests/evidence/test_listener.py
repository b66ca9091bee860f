"""Who listens on a port: found without going through the host's connections, and found again when it changes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from agent.collect import ListenerProcesses, ProcessReading
from agent.collect.listener import Listener
from agent.model import NotMeasured
from tests.support.processes import free_port

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(port: int, state: str, inode: int) -> str:
    return f" 0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


def tree(folder: Path, tcp: str, holders: dict[int, list[str]]) -> Path:
    (folder / "net").mkdir()
    (folder / "net" / "tcp").write_text(HEAD + tcp)
    for pid, targets in holders.items():
        (folder / str(pid) / "fd").mkdir(parents=True)
        for number, target in enumerate(targets):
            (folder / str(pid) / "fd" / str(number)).symlink_to(target)
    return folder


def test_the_process_that_listens_here_is_found_with_its_children() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
            try:
                reading = ListenerProcesses(port).read()
            finally:
                child.kill()
                child.wait()
    assert isinstance(reading, ProcessReading)
    assert reading.members[0].pid == os.getpid() and child.pid in [one.pid for one in reading.members]
    assert reading.resident_bytes > 1_000_000


def test_an_ipv6_listener_is_found() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert Listener(server.getsockname()[1]).pid() == os.getpid()


def test_nobody_is_said() -> None:
    port = free_port()
    assert ListenerProcesses(port).read() == NotMeasured(
        check="processes", reason=f"no process of this host listens on port {port}"
    )


def test_another_process_under_the_port_is_found_anew(tmp_path: Path) -> None:
    proc = tree(tmp_path, row(8000, "0A", 71), {40: ["socket:[71]", "/dev/null"], 50: ["socket:[72]"]})
    listener = Listener(8000, proc=proc)
    assert listener.pid() == 40
    (proc / "net" / "tcp").write_text(HEAD + row(8000, "0A", 72))
    assert listener.pid() == 50
    (proc / "net" / "tcp").write_text(HEAD)
    assert listener.pid() is None


def test_a_connection_from_the_port_is_no_listener_and_ends_the_reading(tmp_path: Path) -> None:
    tcp = row(22, "0A", 70) + row(8000, "01", 71) + "what comes here is not read" + row(8000, "0A", 72)
    listener = Listener(8000, proc=tree(tmp_path, tcp, {40: ["socket:[71]"], 50: ["socket:[72]"]}))
    assert listener.pid() is None

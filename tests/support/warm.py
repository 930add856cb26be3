"""The `llmirage` command in forks of a process that has simulated once: a tenth of the CPU time of a new interpreter.

Run as a program with `serve` it is that process. Else it is a command that hands its streams, folder and environment to a
fork, passes signals on to it and ends as it ends.
"""

import array
import ast
import atexit
import functools
import os
import select
import signal
import socket
import sys
from contextlib import suppress


@functools.cache
def llmirage() -> tuple[str, ...]:
    """Return the words that start the command, before its own words. The first call starts the process that forks."""
    import subprocess
    import tempfile

    if not hasattr(os, "pidfd_open"):
        return sys.executable, "-m", "llmirage"
    folder = tempfile.TemporaryDirectory()
    address = os.path.join(folder.name, "forks")
    command = [sys.executable, __file__, "serve", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder.name)
    assert process.stdout is not None
    assert process.stdout.readline()
    atexit.register(lambda: (process.communicate(), folder.cleanup()))
    return sys.executable, "-IS", __file__, address


def _hand_over(address: str, words: list[str]) -> None:
    """Let a fork do it, and end."""
    streams = [number for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)) if stream is not None]
    told = repr((words, os.getcwd(), dict(os.environ), streams)).encode()
    with socket.socket(socket.AF_UNIX) as forks:
        forks.connect(address)
        forks.sendmsg([len(told).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
        forks.sendall(told)
        child = int.from_bytes(forks.recv(4))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(child, number))
        status = os.waitstatus_to_exitcode(int.from_bytes(forks.recv(4)))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(address: str) -> None:
    """Fork for each connection until standard input ends. It returns in the forks, which have become the commands."""
    ended = sys.stdin.fileno()
    children: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("listens", flush=True)
        while True:
            ready, _, _ = select.select([ended, listening, *children, *(other for _, other in children.values())], [], [])
            if ended in ready:
                for child, _ in children.values():
                    os.killpg(child, signal.SIGKILL)
                sys.exit()
            for handle, (child, connection) in list(children.items()):
                if handle in ready:
                    with suppress(OSError):
                        connection.sendall(os.waitpid(child, 0)[1].to_bytes(4))
                    connection.close()
                    os.close(handle)
                    del children[handle]
                elif connection in ready:  # which was killed
                    os.killpg(child, signal.SIGKILL)
            if listening not in ready:
                continue
            connection, _ = listening.accept()
            length, streams, _, _ = socket.recv_fds(connection, 4, 3)
            told = connection.recv(int.from_bytes(length), socket.MSG_WAITALL)
            if (child := os.fork()) == 0:
                os.setpgid(0, 0)
                break
            os.setpgid(child, child)
            for stream in streams:
                os.close(stream)
            children[os.pidfd_open(child)] = child, connection
            with suppress(OSError):  # its end may be over already: the loop sees that
                connection.sendall(child.to_bytes(4))
    for handle, (_, other) in children.items():
        os.close(handle)
        other.close()
    connection.close()
    _become(told, streams)


def _become(told: bytes, streams: list[int]) -> None:
    words, folder, environment, numbers = ast.literal_eval(told.decode())
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        if number in numbers:
            os.dup2(streams[numbers.index(number)], number)
            errors = "backslashreplace" if number == 2 else None
            # It stays open, as the stream that it replaces does.
            stream = open(number, "w" if number else "r", errors=errors, closefd=False)  # noqa: SIM115
            stream.reconfigure(line_buffering=number == 2 or stream.isatty())
        else:
            os.close(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for stream in streams:
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        _hand_over(sys.argv[1], sys.argv[2:])
    import gc
    import threading

    import llmirage_server.commands.serve  # noqa: F401  (loaded once for all forks)
    from llmirage_client.cli import main

    with open(os.devnull, "w") as sys.stdout, suppress(SystemExit):
        main(["simulate", "--isl", "9", "--osl", "2", "--requests", "2", "--via", "api"])
    sys.stdout = sys.__stdout__
    gc.freeze()  # what is there stays
    _serve(sys.argv[2])
    try:
        main(prog_name="llmirage")
    except SystemExit as end:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads as the end of an interpreter does
        atexit._run_exitfuncs()
        for written in filter(None, (sys.stdout, sys.stderr)):
            written.flush()
        os._exit(end.code)  # without the teardown of what was there before

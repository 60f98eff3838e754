"""Stands in for kestrelctl where a shell starts it: has it forked, passes signals on to it, and ends as it does.

`python -I -S stand_in.py SOCKET PYTHON [ARGUMENT…]` imports next to nothing: that is a tenth of what a start takes.
Who is asked may want the program to start as it does for users; then it takes the place of this one.
"""

import _signal
import _socket
import marshal
import posix
import sys

PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
STATUS_BYTES = 4
NOT_STARTED = 0


def is_open(number: int) -> bool:
    try:
        posix.fstat(number)
    except OSError:
        return False
    return True


def asked(path: bytes, arguments: list[bytes]) -> int:
    """The status it ended with, and 1; or that it has not been started."""
    numbers = [number for number in range(3) if is_open(number)]
    ignored = [number for number in PASSED_ON if _signal.getsignal(number) == _signal.SIG_IGN]
    posix.umask(umask := posix.umask(0))
    request = marshal.dumps((numbers, arguments, posix.environ, posix.getsid(0), umask, ignored))
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        return NOT_STARTED
    folder = posix.open(".", posix.O_RDONLY)
    descriptors = b"".join(one.to_bytes(4, sys.byteorder) for one in (folder, *numbers))
    connection.sendmsg([len(request).to_bytes(4, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    posix.close(folder)
    connection.sendall(request)
    # Not before: a signal that comes while it asks ends it, and is not taken for a part of what it asks.
    for number in PASSED_ON:
        if number not in ignored:
            _signal.signal(number, lambda number, frame: connection.send(bytes((number,))) and None)
    status = connection.recv(STATUS_BYTES)
    return int.from_bytes(status, "little") if status else sys.exit("who forks kestrelctl has gone")


def main() -> None:
    path, program, *rest = (word.encode(sys.getfilesystemencoding(), "surrogateescape") for word in sys.argv[1:])
    if (ended := asked(path, rest)) == NOT_STARTED:
        posix.execv(program, [program, b"-m", b"kestrelctl", *rest])
    status = ended - 1
    if posix.WIFSIGNALED(status):
        _signal.signal(posix.WTERMSIG(status), _signal.SIG_DFL)
        posix.kill(posix.getpid(), posix.WTERMSIG(status))
    posix._exit(posix.WEXITSTATUS(status))


main()

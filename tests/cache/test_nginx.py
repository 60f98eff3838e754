"""nginx serves what is in the cache, without an application: a message of a LogQueue too."""

import http.client
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld.recipes import LogQueue, Servers
from tests.support.waiting import until
from tests.support.wire import connected

START_S: Final = 60
CONFIG: Final = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 16; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen unix:{folder}/http.sock;
        location / {{
            set $memcached_key $arg_key;
            memcached_pass 127.0.0.1:{port};
            default_type text/plain;
        }}
    }}
}}
"""


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("nginx", timeout=START_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(START_S)
        self.sock.connect(self._path)


@pytest.fixture
def nginx(cache_port: int, short_path: Path) -> Iterator[str]:
    """One of the test's own, that looks up `?key=`; the path of its socket."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: apt install nginx")
    config = short_path / "nginx.conf"
    config.write_text(CONFIG.format(folder=short_path, port=cache_port))
    command = [program, "-p", str(short_path), "-e", str(short_path / "error.log"), "-c", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: listens(short_path / "http.sock") or process.poll() is not None, "nginx to listen")
        assert process.poll() is None, process.communicate()[1]
        yield str(short_path / "http.sock")
    finally:
        process.kill()
        process.communicate()


def listens(path: Path) -> bool:
    """The socket has its name before somebody listens there."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def fetched(path: str, key: str) -> tuple[int, bytes]:
    connection = OverUnix(path)
    connection.request("GET", f"/?key={key}")
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_nginx_serves_a_value_under_its_key(cache_port: int, nginx: str) -> None:
    page = b"<p>caf\xc3\xa9</p>\r\n" * 5000
    with connected(cache_port) as client:
        client.ask(b"set page:/hello 0 0 %d\r\n%b\r\n" % (len(page), page), b"STORED\r\n")
    assert fetched(nginx, "page:/hello") == (200, page)
    assert fetched(nginx, "page:/nothing")[0] == 404


def test_nginx_serves_a_message_of_a_log(cache_port: int, nginx: str) -> None:
    """Under the key that docs/recipes-memcached.md names."""
    servers = Servers(f"127.0.0.1:{cache_port}")
    position = LogQueue(servers, "news").put(b"first message")
    key = f"log:news:{position.epoch:08x}:{position.number}"
    assert fetched(nginx, key) == (200, b"first message")

"""Certificates for a test, made by openssl: an authority, a server's and any number of clients'."""

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority in a folder of the test."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", "-nodes", *_NEW_KEY, "-keyout", self._key, "-out", self.certificate, "-days", "2",
                 "-subj", f"/CN={name}", "-addext", "keyUsage=keyCertSign")  # fmt: skip

    def issue(self, name: str, *alternatives: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate for a common name and names such as DNS:a.example; its path and its key's."""
        certificate, key, request = (self.folder / f"{name}.{ending}" for ending in ("pem", "key", "csr"))
        names = ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
        _openssl("req", "-new", "-nodes", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}", *names)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-out", certificate,
                 "-days", str(days), "-copy_extensions", "copyall", "-CAcreateserial")  # fmt: skip
        return certificate, key

    def issue_server(self) -> tuple[Path, Path]:
        """A certificate for kestreld on this machine."""
        return self.issue("server", "DNS:localhost", "IP:127.0.0.1")


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""Object storage that speaks S3, on this machine: moto's server, in this process."""

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET: Final = "lake"
SECRET: Final = "never-to-be-seen"
KEY: Final = "a-key"
REGION: Final = "us-east-1"


class ObjectStorage:
    """`damages`: what is put into objects of which the key has these letters in it gets a byte changed on its way."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.damages = ""
        self.server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and self.damages and self.damages in environ["PATH_INFO"]:
            body = bytearray(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            body[-1] ^= 1
            environ["wsgi.input"] = io.BytesIO(body)
        found: Iterable[bytes] = self._app(environ, start_response)
        return found

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = [one["Key"] for page in pages for one in page.get("Contents", [])]
        return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def count(self, prefix: str) -> int:
        return int(self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"])


def credentials_file(folder: Path) -> Path:
    path = folder / "credentials"
    path.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    path.chmod(0o600)
    return path


@contextmanager
def object_storage() -> Iterator[ObjectStorage]:
    """With an empty bucket."""
    storage = ObjectStorage()
    thread = threading.Thread(target=storage.server.serve_forever, daemon=True)
    thread.start()
    try:
        storage.client().create_bucket(Bucket=BUCKET)
        yield storage
    finally:
        storage.server.shutdown()
        thread.join()
        storage.server.server_close()

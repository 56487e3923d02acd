"""Where blobs are, as a user writes it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.blobs.place import BucketPlace, DirectoryPlace, read_place
from holdfast.cli.main import app as cli
from holdfast.errors import BadAddress
from holdfast.wiring import plan_blobs

SECRET = "wJalrXUtnFEMI-not-to-be-shown"


def test_a_path_is_a_directory() -> None:
    assert read_place("blobs dir") == DirectoryPlace(Path.cwd() / "blobs dir")
    assert read_place("/srv/blobs") == DirectoryPlace(Path("/srv/blobs"))
    assert read_place("file:///srv/b%20lobs") == DirectoryPlace(Path("/srv/b lobs"))
    assert read_place("file://localhost/srv/b") == DirectoryPlace(Path("/srv/b"))


def test_a_bucket_may_have_a_prefix_an_endpoint_and_a_region() -> None:
    assert read_place("s3://bucket") == BucketPlace(bucket="bucket")
    text = "s3://buc.ket/a/b/?endpoint=http://127.0.0.1:9000/&region=eu-1&allow_http=TRUE"
    place = read_place(text)
    assert place == BucketPlace(
        bucket="buc.ket",
        prefix="a/b",
        endpoint="http://127.0.0.1:9000",
        region="eu-1",
        allow_http=True,
    )
    assert read_place(place.address) == place


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "s3://bucket"),
        ("gs://bucket", "s3://bucket"),
        ("http://host/bucket", "s3://bucket"),
        ("s3://", "3 to 63"),
        ("s3://ab", "3 to 63"),
        ("s3://Bucket", "3 to 63"),
        ("s3://bucket/a b", "prefix"),
        ("s3://bucket/../b", "prefix"),
        ("s3://bucket/%2e%2e", "prefix"),
        ("s3://bucket?endpoint=", "endpoint has no value"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "https://host:port"),
        ("s3://bucket?endpoint=http://h:x&allow_http=true", "https://host:port"),
        ("s3://bucket?endpoint=http://host:9000", "allow_http=true"),
        ("s3://bucket?allow_http=maybe", "true or false"),
        ("s3://bucket?verify=false", "unknown parameter 'verify'"),
        ("s3://[bucket", "invalid place of blobs"),
        ("file://other/srv", "another host"),
        ("file:srv", "file:///directory"),
        ("file:///srv?a=b", "file:///directory"),
    ],
)
def test_an_invalid_address_is_refused_before_anything_is_opened(text: str, named: str) -> None:
    with pytest.raises(BadAddress, match="invalid place of blobs") as raised:
        plan_blobs(text)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{SECRET}@bucket/prefix",
        f"s3://bucket?secret_access_key={SECRET}",
        f"s3://bucket?aws_secret={SECRET}&region=eu",
        f"s3://bucket?endpoint=https://u:{SECRET}@host",
        f"gs://key:{SECRET}@bucket?password={SECRET}",
        f"s3://[key:{SECRET}@bucket",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(BadAddress) as raised:
        read_place(text)
    assert SECRET not in str(raised.value)

    shown = CliRunner().invoke(cli, ["config"], env={"HOLDFAST_BLOBS": text})
    assert "blobs" in shown.output
    assert SECRET not in shown.output + str(shown.exception)

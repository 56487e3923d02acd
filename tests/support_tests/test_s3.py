"""The S3 server of the tests."""

from tests.support.s3 import S3Server


def test_a_bucket_holds_what_is_put_until_it_is_dropped(s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    s3_server.request("PUT", f"/{bucket}/a/b")
    assert s3_server.keys(bucket) == ["a/b"]
    assert s3_server.unfinished_uploads(bucket) == []
    s3_server.drop_bucket(bucket)
    assert bucket not in s3_server.buckets()

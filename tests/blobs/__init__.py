"""Tests of the place of blobs: a directory, and a bucket."""

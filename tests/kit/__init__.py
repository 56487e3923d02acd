"""The test kit: what it promises to those who test their own apps with it."""

"""Rules that tests apply."""

from __future__ import annotations

ALLOW = 'version = 1\ndefault = "allow"\n'
TWO_PEOPLE = """
version = 1
default = "allow"
[[rule]]
id = "no-rm"
match = { task = "rm*" }
then = "deny"
reason = "nothing is removed here"
[[rule]]
id = "prod"
match = { task = "deploy*" }
then = "approve"
reason = "prod needs two people"
approve = { count = 2, expires = "24h" }
[[rule]]
id = "look"
match = { task = "odd*" }
then = "hold"
[[rule]]
id = "short"
match = { task = "long*" }
then = "allow"
constrain = { timeout = "1m", retries = 0 }
"""
"""Denies rm, asks two people about deploy, holds odd, and limits long."""
DENY_MAILS = """
version = 1
default = "allow"
[[rule]]
id = "no-mails"
match = { task = "mail*" }
then = "deny"
"""

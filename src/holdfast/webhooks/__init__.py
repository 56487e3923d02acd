"""Webhooks: where they are sent, how they are signed, and which addresses may be called."""

from holdfast.webhooks.signature import check_signature

__all__ = ["check_signature"]

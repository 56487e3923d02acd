"""The worker protocol: workers elsewhere, in any language, over HTTP."""

"""Tests of the surfaces: command line, HTTP, MCP, client."""

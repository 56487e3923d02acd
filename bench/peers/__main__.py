"""`python -m bench.peers`: install the peers; with `--smoke`, try every verb of each."""

import argparse
import sys

from bench.peers import DIRECTORY, PEERS
from bench.peers.environments import InstallError
from bench.peers.smoke import smoke


def main() -> int:
    """Install all peers, or those named, and try them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="try every verb with few jobs")
    parser.add_argument("names", nargs="*", help="only these peers")
    arguments = parser.parse_args()
    peers = [peer for peer in PEERS if not arguments.names or peer.name in arguments.names]
    try:
        for peer in peers:
            peer.install(DIRECTORY)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if not arguments.smoke or smoke(peers) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.path` records the path and writes the list; with a URL it prints a record."""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.stores.postgres.migrate import migrate
from tests.path.page import PAGE, record_apart, rendered
from tests.path.steps import record_path
from tests.support.postgres import PostgresCluster


def main() -> None:
    """Write the list, or print one record."""
    if sys.argv[1:]:
        crossed = asyncio.run(record_path(sys.argv[1]))
        print(json.dumps({step: sorted(modules) for step, modules in crossed.items()}))
        return
    with TemporaryDirectory() as folder:
        on_sqlite = record_apart(str(Path(folder) / "jobs.db"))
    with PostgresCluster({"fsync": "off"}) as cluster:
        url = cluster.create_database()
        asyncio.run(migrate(url))
        on_postgres = record_apart(url)
    PAGE.write_text(rendered({"sqlite": on_sqlite, "postgres": on_postgres}), "utf-8")


if __name__ == "__main__":
    main()

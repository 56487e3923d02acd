"""The path of a job, one verb per file: submit admit claim run finish clean recover intervene."""

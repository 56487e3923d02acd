"""What a job may cost, counted and not timed: a regression that would hide in noise shows here."""

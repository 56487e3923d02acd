"""`make demo`: jobs and commands crash, wait, fail, are cancelled, and a live table shows them."""

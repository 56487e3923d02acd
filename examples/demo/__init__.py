"""`make demo`: jobs survive a crash, wait, fail, are mended and cancelled, before your eyes."""

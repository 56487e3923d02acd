"""The documentation: its code runs, its links lead somewhere, and it names all there is."""

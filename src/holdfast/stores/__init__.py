"""The stores: they translate between the law's values and a database's rows, and never decide."""

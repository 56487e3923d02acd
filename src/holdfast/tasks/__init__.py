"""What a user declares and a handler sees: tasks, their arguments, handles and the context."""

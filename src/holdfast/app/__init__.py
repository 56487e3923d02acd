"""The app: what a user's code starts with. Tasks, submits, and questions about jobs."""

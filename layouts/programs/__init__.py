"""What ranks run in an iteration: schedules, orders and routes as programs, and their one executor."""

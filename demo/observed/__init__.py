"""What an outside observer saw of the job, and what was really done."""

"""The ways between a process of a job and the fleet API: by which address, what is said, and how it is said again."""

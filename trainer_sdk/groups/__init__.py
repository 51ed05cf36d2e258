"""Process groups by epoch: built, waited for and abandoned without ever blocking the training thread for good."""

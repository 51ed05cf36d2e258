"""What a finding is."""

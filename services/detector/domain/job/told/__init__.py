"""What is told: which verdict, whom it names, its facts as sentences, and how it meets what was asked."""

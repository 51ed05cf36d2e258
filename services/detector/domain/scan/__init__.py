"""Has a row changed? Windows of many lengths, each judged by what healthy windows of its length look like."""

"""Columns from CSV and parquet files."""

"""What arrives: demand from statistics, and when it has clearly changed."""

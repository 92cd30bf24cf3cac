"""The arriving traffic: demand from statistics, and when it has clearly changed."""

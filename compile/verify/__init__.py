"""Verification: kept answers, bounds, and a replacement for engines that cannot run here."""

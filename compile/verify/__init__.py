"""What verification compares: kept answers, bounds, and a stand-in for engines that cannot run here."""

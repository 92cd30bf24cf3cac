"""Tabi (EuroSys'23): its search as printed, the systems it is compared with, and what each mechanism is worth."""

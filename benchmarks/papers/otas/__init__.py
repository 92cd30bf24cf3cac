"""OTAS: its figures, and INFaaS, PetS, ToMe and VPT as it compares with them."""

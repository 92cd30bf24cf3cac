"""What is seen of the cluster, and what follows from it: plans, scaling, recycling."""

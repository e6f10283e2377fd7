"""What is given out on one node and whose it is: values and rules. Pure."""

"""Print the path of a kubectl for the tests; where it comes from: lambda_layer.py."""

import sys

from lambda_layer import print_path

if __name__ == "__main__":
    sys.exit(print_path("kubectl"))

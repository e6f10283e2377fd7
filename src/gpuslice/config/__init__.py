"""Files that people write: read strictly, and wrong in one sentence that names the place and the remedy."""

"""The admission of pods before they are stored: pure rules, and the webhook that serves them."""

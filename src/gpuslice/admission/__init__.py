"""What is changed in a pod before it is stored. Pure; the extender's server offers it as a webhook."""

"""The commands that run for ever: agent, extender, scheduler, and the webhook beside them."""

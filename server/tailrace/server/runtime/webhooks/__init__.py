"""Push notifications: delivery to the webhooks of clients."""

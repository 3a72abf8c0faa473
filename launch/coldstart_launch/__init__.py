"""The whole chain for one replica: health, mount, restore or cold start, ready."""

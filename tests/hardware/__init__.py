"""GPUs, the host and the container, as the collectors read them."""

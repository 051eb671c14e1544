"""Any connector, by vLLM's base interface; what some say beyond it."""

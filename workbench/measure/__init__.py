"""What is measured on a device: the CPU runtime, benchmark runners, captured runs and their store."""

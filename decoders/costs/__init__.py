"""What decoding costs: passes as measured on this machine, and what theory makes of them."""
